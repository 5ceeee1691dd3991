// SPDX-License-Identifier: AGPL-3.0-only
// Fila for a NestJS application: a client for whoever injects it, closed with the application, and
// a base for providers that handle the messages of a queue.

import { Global, Inject, Module } from "@nestjs/common";
import type { DynamicModule, OnApplicationBootstrap, OnApplicationShutdown } from "@nestjs/common";
import { Client } from "@fila/client";
import type { ClientOptions, ConsumeMessage, Worker, WorkerOptions } from "@fila/client";

export interface FilaOptions extends ClientOptions {
  /** Where the broker is: one address, or several of a cluster. */
  readonly target: string | readonly string[];
}

@Global()
@Module({})
export class FilaModule implements OnApplicationShutdown {
  constructor(@Inject(Client) private readonly client: Client) {}

  static forRoot({ target, ...options }: FilaOptions): DynamicModule {
    const client = { provide: Client, useFactory: () => new Client(target, options) };
    return { module: FilaModule, providers: [client], exports: [Client] };
  }

  // Workers are stopped before: Nest destroys modules, then it shuts the application down.
  async onApplicationShutdown(): Promise<void> {
    await this.client.close();
  }
}

/** A provider that handles a queue: extend it, and it works for as long as the application runs. */
export abstract class QueueWorker implements OnApplicationBootstrap {
  abstract readonly queue: string;
  readonly options: WorkerOptions = {};
  private worker: Worker | undefined;
  private ended: Promise<void> | undefined;

  constructor(protected readonly client: Client) {}

  /** Returning acks, throwing nacks; see `Backpressure` and `DeadLetter`. */
  abstract handle(message: ConsumeMessage, signal: AbortSignal): Promise<void>;

  async onApplicationBootstrap(): Promise<void> {
    await this.client.ensureQueue(this.queue);
    this.worker = this.client.worker(
      this.queue,
      (message, { signal }) => this.handle(message, signal),
      this.options,
    );
    // Nest is in charge of signals: `app.enableShutdownHooks()`.
    this.ended = this.worker.run({ signals: false });
    // A queue that was deleted, say. What is thrown here ends the process, as it should.
    this.ended.catch((error: unknown) => {
      setImmediate(() => {
        throw error;
      });
    });
  }

  /** Handlers finish, and what none has seen goes back. */
  async onModuleDestroy(): Promise<void> {
    await this.worker?.stop();
  }
}
