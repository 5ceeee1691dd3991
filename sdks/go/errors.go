// SPDX-License-Identifier: AGPL-3.0-only

// What can go wrong, as one type and one sentinel per kind. Kinds are chosen by the broker's
// reason, then by status, never by text.
//
//	ErrInvalidArgument    > ErrInvalidScript, ErrNotADeadLetterQueue, ErrMessageTooLarge
//	ErrResourceExhausted  > ErrOverloaded, ErrQueueFull, ErrDiskFull
//	ErrUnavailable        > ErrShuttingDown
//	ErrInternal           > ErrStorageFailed
//
// A narrower kind is its wider one too: errors.Is(err, ErrUnavailable) holds for ErrShuttingDown.

package fila

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
)

// Error is what every call of this package fails with, except for io.EOF from Consumer.Next.
// errors.Is finds its kind, and the context's own error where a context ended the call.
type Error struct {
	// Kind is the sentinel of the narrowest kind, such as ErrQueueNotFound.
	Kind error
	// Message is one clause for people, from the broker where the broker refused.
	Message string
	// Code is the gRPC status; that of the kind where the error is one item's of a batch.
	Code codes.Code
	// Reason is the broker's reason, such as "QUEUE_NOT_FOUND"; empty where it gave none.
	Reason string
	// Queue and MessageID are what the call was about, as far as it named it.
	Queue     string
	MessageID string
	// Retryable says whether the same call may succeed later. It does not promise that the first
	// one did nothing: repeating an enqueue that may have been stored needs an idempotency key.
	Retryable bool

	cause error
}

// Error returns the message alone: a clause that names the value at fault.
func (e *Error) Error() string { return e.Message }

// Unwrap gives errors.Is the kind, and what gRPC or the context said.
func (e *Error) Unwrap() []error {
	if e.cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.cause}
}

// kind is the type of the sentinels: a text for errors that come without one, and a wider kind.
type kind struct {
	text        string
	wider       error
	isRetryable bool
}

func (k *kind) Error() string { return k.text }

func (k *kind) Unwrap() error { return k.wider }

var (
	kindInvalidArgument = &kind{text: "a field is missing, malformed or out of range"}
	kindExhausted       = &kind{
		text: "a limit of the broker or of this client is reached", isRetryable: true,
	}
	kindUnavailable = &kind{text: "the broker cannot be reached", isRetryable: true}
	kindInternal    = &kind{text: "the broker failed"}
)

// The kinds that the broker gives a reason for.
var (
	ErrQueueNotFound   error = &kind{text: "the queue does not exist"}
	ErrMessageNotFound error = &kind{
		text: "the queue holds no such message, or it is not leased",
	}
	ErrLeaseExpired error = &kind{
		text: "the lease token is not the one of the message's current delivery",
	}
	ErrQueueAlreadyExists  error = &kind{text: "the queue exists already"}
	ErrInvalidArgument     error = kindInvalidArgument
	ErrInvalidScript             = narrower(kindInvalidArgument, "the Lua source is no hook")
	ErrNotADeadLetterQueue       = narrower(
		kindInvalidArgument, "the queue is not a dead-letter queue",
	)
	ErrParentQueueNotFound error = &kind{
		text: "the queue that the dead letters came from no longer exists",
	}
	ErrMessageTooLarge = narrower(
		kindInvalidArgument, "payload, headers or request exceed a limit",
	)
	ErrOverloaded = narrower(
		kindExhausted, "the broker has more work waiting than it accepts",
	)
	ErrQueueFull = narrower(
		kindExhausted, "the queue holds as many messages as it may",
	)
	ErrDiskFull     = narrower(kindExhausted, "the broker's data volume is nearly full")
	ErrShuttingDown = narrower(
		kindUnavailable, "the broker is going away; nothing was done",
	)
	ErrUnauthenticated  error = &kind{text: "no API key, or not a valid one"}
	ErrPermissionDenied error = &kind{text: "the API key may not do this"}
	ErrStorageFailed          = narrower(
		kindInternal, "the broker's store failed; the outcome is unknown",
	)
	ErrHookFailed error = &kind{
		text: "the queue's on_enqueue hook failed and its policy is to reject",
	}
	ErrConfigNotFound error = &kind{text: "no runtime configuration entry has that key"}
	ErrMessageLeased  error = &kind{text: "the message is leased"}
	ErrAPIKeyNotFound error = &kind{text: "no API key has that id"}
	ErrInternal       error = kindInternal
)

// The kinds that come without a reason: from gRPC, from a proxy, or from this package.
var (
	ErrResourceExhausted error = kindExhausted
	ErrUnavailable       error = kindUnavailable
	ErrDeadlineExceeded  error = &kind{
		text: "no answer came in time; the outcome is unknown", isRetryable: true,
		// The broker knows a call's deadline, and may be the first to say that it passed.
		wider: context.DeadlineExceeded,
	}
	ErrCanceled      error = &kind{text: "the call was canceled; the outcome is unknown"}
	ErrUnimplemented error = &kind{text: "the broker does not know this call"}
	ErrClientClosed  error = &kind{text: "the client is closed"}
)

func narrower(wider *kind, text string) error {
	return &kind{text: text, wider: wider, isRetryable: wider.isRetryable}
}

// reasons are those of the contract: the kind, and the status that the broker sends with it. Items
// of a batch carry a reason alone, so the status of an item's error comes from here.
var reasons = map[string]struct {
	kind error
	code codes.Code
}{
	"QUEUE_NOT_FOUND":         {ErrQueueNotFound, codes.NotFound},
	"MESSAGE_NOT_FOUND":       {ErrMessageNotFound, codes.NotFound},
	"LEASE_EXPIRED":           {ErrLeaseExpired, codes.FailedPrecondition},
	"QUEUE_ALREADY_EXISTS":    {ErrQueueAlreadyExists, codes.AlreadyExists},
	"INVALID_ARGUMENT":        {ErrInvalidArgument, codes.InvalidArgument},
	"INVALID_SCRIPT":          {ErrInvalidScript, codes.InvalidArgument},
	"NOT_A_DEAD_LETTER_QUEUE": {ErrNotADeadLetterQueue, codes.InvalidArgument},
	"PARENT_QUEUE_NOT_FOUND":  {ErrParentQueueNotFound, codes.FailedPrecondition},
	"MESSAGE_TOO_LARGE":       {ErrMessageTooLarge, codes.InvalidArgument},
	"OVERLOADED":              {ErrOverloaded, codes.ResourceExhausted},
	"QUEUE_FULL":              {ErrQueueFull, codes.ResourceExhausted},
	"DISK_FULL":               {ErrDiskFull, codes.ResourceExhausted},
	"SHUTTING_DOWN":           {ErrShuttingDown, codes.Unavailable},
	"UNAUTHENTICATED":         {ErrUnauthenticated, codes.Unauthenticated},
	"PERMISSION_DENIED":       {ErrPermissionDenied, codes.PermissionDenied},
	"STORAGE_FAILED":          {ErrStorageFailed, codes.Internal},
	"HOOK_FAILED":             {ErrHookFailed, codes.FailedPrecondition},
	"CONFIG_NOT_FOUND":        {ErrConfigNotFound, codes.NotFound},
	"MESSAGE_LEASED":          {ErrMessageLeased, codes.FailedPrecondition},
	"API_KEY_NOT_FOUND":       {ErrAPIKeyNotFound, codes.NotFound},
	"INTERNAL":                {ErrInternal, codes.Internal},
}

// statuses are those that can come without a reason. What is not listed is ErrInternal.
var statuses = map[codes.Code]error{
	codes.AlreadyExists:     ErrQueueAlreadyExists,
	codes.Canceled:          ErrCanceled,
	codes.DeadlineExceeded:  ErrDeadlineExceeded,
	codes.InvalidArgument:   ErrInvalidArgument,
	codes.PermissionDenied:  ErrPermissionDenied,
	codes.ResourceExhausted: ErrResourceExhausted,
	codes.Unauthenticated:   ErrUnauthenticated,
	codes.Unavailable:       ErrUnavailable,
	codes.Unimplemented:     ErrUnimplemented,
}

// subject is what an error is about, as far as the call named it.
type subject struct {
	queue     string
	messageID string
}

// statusError is the error of a whole call: by its reason if that is known, else by its status.
func statusError(code codes.Code, reason, text string, about subject, cause error) error {
	known, isKnown := reasons[reason]
	found := known.kind
	switch {
	case isKnown:
	case code == codes.NotFound && about.messageID != "":
		// What is missing is the most specific thing that the call named.
		found = ErrMessageNotFound
	case code == codes.NotFound && about.queue != "":
		found = ErrQueueNotFound
	default:
		found = statuses[code]
		if found == nil {
			found = ErrInternal
		}
	}
	failure := newError(found, code, text, about, cause)
	failure.Reason = reason
	return failure
}

// itemError is the error of one item of a batch; a reason that a newer broker knows is ErrInternal.
func itemError(reason, text string, about subject) error {
	known, isKnown := reasons[reason]
	if !isKnown {
		known.kind, known.code = ErrInternal, codes.Internal
	}
	failure := newError(known.kind, known.code, text, about, nil)
	failure.Reason = reason
	return failure
}

func newError(found error, code codes.Code, text string, about subject, cause error) *Error {
	var sentinel *kind
	errors.As(found, &sentinel) // All kinds are of this type.
	if text == "" {
		text = sentinel.text
	}
	return &Error{
		Kind:      found,
		Message:   text,
		Code:      code,
		Queue:     about.queue,
		MessageID: about.messageID,
		Retryable: sentinel.isRetryable,
		cause:     cause,
	}
}

// invalid is for what this package refuses itself, before anything is sent.
func invalid(text string, about subject) error {
	return newError(ErrInvalidArgument, codes.InvalidArgument, text, about, nil)
}

func clientClosed(about subject) error {
	return newError(ErrClientClosed, codes.Canceled, "", about, nil)
}

// failureOf is an error as what it is: nothing else is ever made here.
func failureOf(err error) *Error {
	var failure *Error
	errors.As(err, &failure)
	return failure
}

// named is the error of a request as the error of one thing that the request was about.
func named(err error, about subject) error {
	failure := failureOf(err)
	if errors.Is(failure.Kind, ErrClientClosed) {
		return clientClosed(about)
	}
	return statusError(failure.Code, failure.Reason, failure.Message, about, failure.cause)
}
