// SPDX-License-Identifier: AGPL-3.0-only
// A service that enqueues orders, and the worker that handles them.

import { randomUUID } from "node:crypto";

import { Inject, Injectable } from "@nestjs/common";
import { Client, DeadLetter } from "@fila/client";
import type { ConsumeMessage } from "@fila/client";

import { QueueWorker } from "./fila.module";

export const QUEUE = `nestjs-${randomUUID().slice(0, 8)}`;

export interface Order {
  readonly tenant: string;
  readonly total: number;
}

@Injectable()
export class OrdersService {
  constructor(@Inject(Client) private readonly client: Client) {}

  place(order: Order): Promise<string> {
    return this.client.enqueue(QUEUE, {}, { json: order }, { fairnessKey: order.tenant });
  }
}

@Injectable()
export class OrdersWorker extends QueueWorker {
  readonly queue = QUEUE;
  override readonly options = { concurrency: 5, handlerTimeoutMs: 30_000 };
  /** What was handled so far. */
  readonly handled: Order[] = [];

  constructor(@Inject(Client) client: Client) {
    super(client);
  }

  async handle(message: ConsumeMessage): Promise<void> {
    const order = message.json() as Order;
    if (!(order.total > 0)) throw new DeadLetter(`an order of ${order.total}`);
    this.handled.push(order);
    await Promise.resolve();
  }
}
