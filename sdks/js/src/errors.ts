// SPDX-License-Identifier: AGPL-3.0-only
// What can go wrong, as one tree. Knows the contract's names, not gRPC's objects.
//
// FilaError
// |-- QueueNotFoundError        |-- MessageNotFoundError      |-- ConfigNotFoundError
// |-- ApiKeyNotFoundError       |-- QueueAlreadyExistsError   |-- LeaseExpiredError
// |-- MessageLeasedError        |-- ParentQueueNotFoundError  |-- HookFailedError
// |-- UnauthenticatedError      |-- PermissionDeniedError     |-- DeadlineExceededError
// |-- CancelledError            |-- UnimplementedError        |-- ClientClosedError
// |-- InvalidArgumentError    > InvalidScriptError, NotADeadLetterQueueError, MessageTooLargeError
// |-- ResourceExhaustedError  > OverloadedError, QueueFullError, DiskFullError
// |-- UnavailableError        > ShuttingDownError
// `-- InternalError           > StorageFailedError

/** What an error carries beside its text. */
export interface ErrorFields {
  /** The gRPC status by name; null where there is none. */
  readonly code?: string | null;
  /** The broker's reason by name; null where there is none. */
  readonly reason?: string | null;
  /** The queue that the call was about, as far as it named one. */
  readonly queue?: string | null | undefined;
  /** The message that the call was about, as far as it named one. */
  readonly messageId?: string | null | undefined;
  readonly cause?: unknown;
}

/** A call failed. Every error of the broker and of the connection is one of the subclasses. */
export class FilaError extends Error {
  /** The text of an error that came without one. */
  static readonly summary: string = "a call failed";
  /** What `retryable` says of this class. */
  static readonly isRetryable: boolean = false;

  readonly code: string | null;
  readonly reason: string | null;
  readonly queue: string | null;
  readonly messageId: string | null;
  /**
   * Whether the same call may succeed later. It does not promise that the first one did nothing:
   * repeating an enqueue that may have been stored needs an idempotency key.
   */
  readonly retryable: boolean;

  constructor(message = "", fields: ErrorFields = {}) {
    const options = fields.cause === undefined ? undefined : { cause: fields.cause };
    super(message || new.target.summary, options);
    this.code = fields.code ?? null;
    this.reason = fields.reason ?? null;
    this.queue = fields.queue ?? null;
    this.messageId = fields.messageId ?? null;
    this.retryable = new.target.isRetryable;
  }
}

export class QueueNotFoundError extends FilaError {
  static override readonly summary = "the queue does not exist";
}

export class MessageNotFoundError extends FilaError {
  static override readonly summary = "the queue holds no such message, or it is not leased";
}

export class LeaseExpiredError extends FilaError {
  static override readonly summary =
    "the lease token is not the one of the message's current delivery";
}

export class QueueAlreadyExistsError extends FilaError {
  static override readonly summary = "the queue exists already";
}

export class InvalidArgumentError extends FilaError {
  static override readonly summary: string = "a field is missing, malformed or out of range";
}

export class InvalidScriptError extends InvalidArgumentError {
  static override readonly summary = "the Lua source does not compile or defines no hook";
}

export class NotADeadLetterQueueError extends InvalidArgumentError {
  static override readonly summary = "the queue is not a dead-letter queue";
}

export class MessageTooLargeError extends InvalidArgumentError {
  static override readonly summary = "payload, headers or request exceed a limit";
}

export class ParentQueueNotFoundError extends FilaError {
  static override readonly summary = "the queue that the dead letters came from no longer exists";
}

export class ResourceExhaustedError extends FilaError {
  static override readonly summary: string = "a limit of the broker or of this client is reached";
  static override readonly isRetryable = true;
}

export class OverloadedError extends ResourceExhaustedError {
  static override readonly summary = "the broker has more work waiting than it accepts";
}

export class QueueFullError extends ResourceExhaustedError {
  static override readonly summary = "the queue holds as many messages as it may";
}

export class DiskFullError extends ResourceExhaustedError {
  static override readonly summary = "the broker's data volume is nearly full";
}

export class UnavailableError extends FilaError {
  static override readonly summary: string = "the broker cannot be reached";
  static override readonly isRetryable = true;
}

export class ShuttingDownError extends UnavailableError {
  static override readonly summary = "the broker is going away; nothing was done";
}

export class UnauthenticatedError extends FilaError {
  static override readonly summary = "no API key, or not a valid one";
}

export class PermissionDeniedError extends FilaError {
  static override readonly summary = "the API key may not do this";
}

export class ApiKeyNotFoundError extends FilaError {
  static override readonly summary = "no API key has that id";
}

export class ConfigNotFoundError extends FilaError {
  static override readonly summary = "no runtime configuration entry has that key";
}

export class MessageLeasedError extends FilaError {
  static override readonly summary = "the message is leased";
}

export class HookFailedError extends FilaError {
  static override readonly summary =
    "the queue's on_enqueue hook failed and its policy is to reject";
}

export class DeadlineExceededError extends FilaError {
  static override readonly summary = "no answer came in time; the outcome is unknown";
  static override readonly isRetryable = true;
}

/** The broker or a proxy cancelled the call. A caller's own abort gives the signal's reason. */
export class CancelledError extends FilaError {
  static override readonly summary = "the call was cancelled; the outcome is unknown";
}

export class UnimplementedError extends FilaError {
  static override readonly summary = "the broker does not know this call";
}

export class InternalError extends FilaError {
  static override readonly summary: string = "the broker failed";
}

export class StorageFailedError extends InternalError {
  static override readonly summary = "the broker's store failed; the outcome is unknown";
}

export class ClientClosedError extends FilaError {
  static override readonly summary = "the client is closed";
}

export type ErrorClass = typeof FilaError;

/**
 * The reasons of the contract: the class, and the status that the broker sends with it. Items of a
 * batch carry a reason alone, so the status of an item's error comes from here.
 */
const REASONS: Readonly<Record<string, readonly [ErrorClass, string]>> = {
  QUEUE_NOT_FOUND: [QueueNotFoundError, "NOT_FOUND"],
  MESSAGE_NOT_FOUND: [MessageNotFoundError, "NOT_FOUND"],
  LEASE_EXPIRED: [LeaseExpiredError, "FAILED_PRECONDITION"],
  QUEUE_ALREADY_EXISTS: [QueueAlreadyExistsError, "ALREADY_EXISTS"],
  INVALID_ARGUMENT: [InvalidArgumentError, "INVALID_ARGUMENT"],
  INVALID_SCRIPT: [InvalidScriptError, "INVALID_ARGUMENT"],
  NOT_A_DEAD_LETTER_QUEUE: [NotADeadLetterQueueError, "INVALID_ARGUMENT"],
  PARENT_QUEUE_NOT_FOUND: [ParentQueueNotFoundError, "FAILED_PRECONDITION"],
  MESSAGE_TOO_LARGE: [MessageTooLargeError, "INVALID_ARGUMENT"],
  OVERLOADED: [OverloadedError, "RESOURCE_EXHAUSTED"],
  QUEUE_FULL: [QueueFullError, "RESOURCE_EXHAUSTED"],
  DISK_FULL: [DiskFullError, "RESOURCE_EXHAUSTED"],
  SHUTTING_DOWN: [ShuttingDownError, "UNAVAILABLE"],
  UNAUTHENTICATED: [UnauthenticatedError, "UNAUTHENTICATED"],
  PERMISSION_DENIED: [PermissionDeniedError, "PERMISSION_DENIED"],
  STORAGE_FAILED: [StorageFailedError, "INTERNAL"],
  HOOK_FAILED: [HookFailedError, "FAILED_PRECONDITION"],
  CONFIG_NOT_FOUND: [ConfigNotFoundError, "NOT_FOUND"],
  MESSAGE_LEASED: [MessageLeasedError, "FAILED_PRECONDITION"],
  API_KEY_NOT_FOUND: [ApiKeyNotFoundError, "NOT_FOUND"],
  INTERNAL: [InternalError, "INTERNAL"],
};

/**
 * Statuses that come without a reason: from gRPC itself, a proxy, or a broker newer than this
 * table. Everything that is not listed is an InternalError.
 */
const STATUSES: Readonly<Record<string, ErrorClass>> = {
  ALREADY_EXISTS: QueueAlreadyExistsError,
  CANCELLED: CancelledError,
  DEADLINE_EXCEEDED: DeadlineExceededError,
  INVALID_ARGUMENT: InvalidArgumentError,
  PERMISSION_DENIED: PermissionDeniedError,
  RESOURCE_EXHAUSTED: ResourceExhaustedError,
  UNAUTHENTICATED: UnauthenticatedError,
  UNAVAILABLE: UnavailableError,
  UNIMPLEMENTED: UnimplementedError,
};

// On the prototype and not on each error, so that the first line of a stack shows it.
for (const kind of [
  FilaError,
  ClientClosedError,
  ...Object.values(REASONS).map(([kind]) => kind),
  ...Object.values(STATUSES),
]) {
  Object.defineProperty(kind.prototype, "name", { value: kind.name, configurable: true });
}

/** What an error is about, as far as the call named it. */
export interface Subject {
  readonly queue?: string | undefined;
  readonly messageId?: string | undefined;
}

/** The error of one item of a batch; an unknown reason is an InternalError. */
export function fromReason(reason: string, message: string, subject: Subject): FilaError {
  const [kind, code] = REASONS[reason] ?? [InternalError, "INTERNAL"];
  return new kind(message, { code, reason, ...subject });
}

/** The error of a whole call: by its reason if that is known, else by its status. */
export function fromStatus(
  code: string,
  reason: string | null,
  message: string,
  subject: Subject,
  cause?: unknown,
): FilaError {
  const kind = REASONS[reason ?? ""]?.[0] ?? kindOfStatus(code, subject);
  return new kind(message, { code, reason, ...subject, cause });
}

function kindOfStatus(code: string, subject: Subject): ErrorClass {
  if (code === "NOT_FOUND") {
    // What is missing is the most specific thing that the call named.
    if (subject.messageId) return MessageNotFoundError;
    if (subject.queue) return QueueNotFoundError;
  }
  return STATUSES[code] ?? InternalError;
}

/** The error of a batch as the error of one of its items, an object of its own for each caller. */
export function about(error: FilaError, subject: Subject, message = error.message): FilaError {
  if (error.code === null) {
    return new (error.constructor as ErrorClass)(message, { ...subject, cause: error.cause });
  }
  return fromStatus(error.code, error.reason, message, subject, error.cause);
}

/** `<type>: <message>` of whatever was thrown. */
export function wordsOf(error: unknown): string {
  try {
    return String(error).toWellFormed();
  } catch {
    return "a failure that has no words";
  }
}
