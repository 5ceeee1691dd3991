// SPDX-License-Identifier: AGPL-3.0-only
// A NestJS application without a web server: it places orders, its worker handles them, and then it
// closes. One order cannot be handled, and becomes a dead letter.

import "reflect-metadata";
import { setTimeout as sleep } from "node:timers/promises";

import { Module } from "@nestjs/common";
import { NestFactory } from "@nestjs/core";
import { Client } from "@fila/client";

import { FilaModule } from "./fila.module";
import { OrdersService, OrdersWorker, QUEUE } from "./orders";

const ORDERS = 20;
const WAIT_MS = 60_000;
const TARGET = process.env["FILA_ADDR"] ?? "127.0.0.1:5555";

@Module({
  imports: [FilaModule.forRoot({ target: TARGET })],
  providers: [OrdersService, OrdersWorker],
})
class AppModule {}

async function main(): Promise<void> {
  const app = await NestFactory.createApplicationContext(AppModule, { logger: ["error", "warn"] });
  app.enableShutdownHooks();
  const [orders, worker, client] = [app.get(OrdersService), app.get(OrdersWorker), app.get(Client)];
  for (let n = 0; n <= ORDERS; n += 1) await orders.place({ tenant: `t${n % 3}`, total: n });
  const deadline = Date.now() + WAIT_MS;
  const isDone = async (): Promise<boolean> =>
    worker.handled.length === ORDERS && (await client.stats(`${QUEUE}.dlq`)).depth === 1;
  while (!(await isDone())) {
    if (Date.now() > deadline) throw new Error(`only ${worker.handled.length} were handled`);
    await sleep(20);
  }
  console.log(`handled ${worker.handled.length} orders, 1 dead letter`);
  await app.close();
  // The application is over, and its client with it; a worker whose queue goes away fails.
  const operator = new Client(TARGET);
  await operator.deleteQueue(QUEUE);
  await operator.close();
}

void main();
