// SPDX-License-Identifier: AGPL-3.0-only
// JavaScript and TypeScript client for Fila. These names are the public API; everything else may
// change.

export { NewApiKey } from "./access.js";
export type { Acl, AclEntry, ApiKeyInfo, ApiKeyOptions, Permission } from "./access.js";
export type {
  DeletedQueue,
  DeleteOptions,
  Explanation,
  ExplainOptions,
  FairnessKeyOptions,
  FairnessKeyStats,
  HookStats,
  MessageState,
  PauseThrottleOptions,
  PeekedMessage,
  PeekOptions,
  PeekPage,
  QueueCounters,
  QueueInfo,
  QueueStats,
  RedriveOptions,
  StatsOptions,
  ThrottleKeyStats,
  ThrottleOptions,
  ThrottlePage,
  WaitKind,
  WaitReason,
} from "./admin.js";
export { Client } from "./client.js";
export type {
  EnqueueOptions,
  ExtendManyOptions,
  ExtendOptions,
  LeaseOptions,
  ReceiveOptions,
} from "./client.js";
export type { ExtendGrantOptions, GrantOptions, NackGrantOptions } from "./grants.js";
export { Consumer } from "./consumer.js";
export {
  ApiKeyNotFoundError,
  CancelledError,
  ClientClosedError,
  ConfigNotFoundError,
  DeadlineExceededError,
  DiskFullError,
  FilaError,
  HookFailedError,
  InternalError,
  InvalidArgumentError,
  InvalidScriptError,
  LeaseExpiredError,
  MessageLeasedError,
  MessageNotFoundError,
  MessageTooLargeError,
  NotADeadLetterQueueError,
  OverloadedError,
  ParentQueueNotFoundError,
  PermissionDeniedError,
  QueueAlreadyExistsError,
  QueueFullError,
  QueueNotFoundError,
  ResourceExhaustedError,
  ShuttingDownError,
  StorageFailedError,
  UnauthenticatedError,
  UnavailableError,
  UnimplementedError,
} from "./errors.js";
export type { ErrorFields } from "./errors.js";
export { ConsumeMessage, EnqueueResult, Message } from "./message.js";
export type {
  Delivery,
  EnqueueMessage,
  Failure,
  FailureCause,
  Headers,
  MessageOptions,
  NackOptions,
  Payload,
} from "./message.js";
export type {
  BackoffOptions,
  CallOptions,
  ClientOptions,
  ConnectionEvent,
  ConsumeOptions,
  TlsOptions,
} from "./options.js";
export type { HookErrorPolicy, QueueConfig, QueueSettings } from "./settings.js";
export { extract, processing } from "./tracing.js";
export type { OtelContext, OtelSpan } from "./tracing.js";
export { VERSION } from "./version.js";
export { Worker } from "./worker.js";
export { Backpressure, DeadLetter } from "./handler.js";
export type {
  BatchHandler,
  BatchWorkerOptions,
  Handler,
  HandlerContext,
  Middleware,
  RunOptions,
  StopOptions,
  WorkerEvent,
  WorkerEventKind,
  WorkerOptions,
} from "./handler.js";
