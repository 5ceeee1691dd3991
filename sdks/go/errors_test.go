// SPDX-License-Identifier: AGPL-3.0-only

package fila_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fila "github.com/faiscadev/fila/sdks/go"
	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

// kindsByReason has a row for every reason of the contract; a test below sees to that.
var kindsByReason = map[string]struct {
	kind      error
	code      codes.Code
	retryable bool
}{
	"QUEUE_NOT_FOUND":         {fila.ErrQueueNotFound, codes.NotFound, false},
	"MESSAGE_NOT_FOUND":       {fila.ErrMessageNotFound, codes.NotFound, false},
	"LEASE_EXPIRED":           {fila.ErrLeaseExpired, codes.FailedPrecondition, false},
	"QUEUE_ALREADY_EXISTS":    {fila.ErrQueueAlreadyExists, codes.AlreadyExists, false},
	"INVALID_ARGUMENT":        {fila.ErrInvalidArgument, codes.InvalidArgument, false},
	"INVALID_SCRIPT":          {fila.ErrInvalidScript, codes.InvalidArgument, false},
	"NOT_A_DEAD_LETTER_QUEUE": {fila.ErrNotADeadLetterQueue, codes.InvalidArgument, false},
	"PARENT_QUEUE_NOT_FOUND":  {fila.ErrParentQueueNotFound, codes.FailedPrecondition, false},
	"MESSAGE_TOO_LARGE":       {fila.ErrMessageTooLarge, codes.InvalidArgument, false},
	"OVERLOADED":              {fila.ErrOverloaded, codes.ResourceExhausted, true},
	"QUEUE_FULL":              {fila.ErrQueueFull, codes.ResourceExhausted, true},
	"DISK_FULL":               {fila.ErrDiskFull, codes.ResourceExhausted, true},
	"SHUTTING_DOWN":           {fila.ErrShuttingDown, codes.Unavailable, true},
	"UNAUTHENTICATED":         {fila.ErrUnauthenticated, codes.Unauthenticated, false},
	"PERMISSION_DENIED":       {fila.ErrPermissionDenied, codes.PermissionDenied, false},
	"STORAGE_FAILED":          {fila.ErrStorageFailed, codes.Internal, false},
	"HOOK_FAILED":             {fila.ErrHookFailed, codes.FailedPrecondition, false},
	"CONFIG_NOT_FOUND":        {fila.ErrConfigNotFound, codes.NotFound, false},
	"MESSAGE_LEASED":          {fila.ErrMessageLeased, codes.FailedPrecondition, false},
	"API_KEY_NOT_FOUND":       {fila.ErrAPIKeyNotFound, codes.NotFound, false},
	"INTERNAL":                {fila.ErrInternal, codes.Internal, false},
}

func TestEveryReasonOfTheContractHasItsKind(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	for number, name := range filapb.ErrorReason_name {
		if number == 0 {
			continue
		}
		reason := strings.TrimPrefix(name, "ERROR_REASON_")
		want, isKnown := kindsByReason[reason]
		if !isKnown {
			t.Fatalf("reason %s has no kind", reason)
		}
		// A status that says something else: the reason decides.
		b.script("DeleteQueue", refuse(codes.Aborted, "as the broker put it", reason))
		failure := wantKind(t, deleteQueue(t.Context(), client, "orders"), want.kind)
		equal(t, reason+" text", failure.Error(), "as the broker put it")
		equal(t, reason+" code", failure.Code, codes.Aborted)
		equal(t, reason+" retryable", failure.Retryable, want.retryable)
		equal(t, reason+" reason", failure.Reason, reason)
		equal(t, reason+" queue", failure.Queue, "orders")

		b.script("AckBatch", replyWith(&filapb.AckBatchResponse{Results: []*filapb.ItemResult{{
			Error: &filapb.ItemError{Reason: filapb.ErrorReason(number), Message: "refused"},
		}}}))
		failure = wantKind(t, client.Ack(t.Context(), "orders", "m-1", ""), want.kind)
		equal(t, reason+" code of an item", failure.Code, want.code)
		equal(t, reason+" message id", failure.MessageID, "m-1")
	}
}

func TestStatusWithoutAReasonHasItsKind(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	kinds := map[codes.Code]error{
		codes.Canceled:           fila.ErrCanceled,
		codes.Unknown:            fila.ErrInternal,
		codes.InvalidArgument:    fila.ErrInvalidArgument,
		codes.DeadlineExceeded:   fila.ErrDeadlineExceeded,
		codes.NotFound:           fila.ErrQueueNotFound,
		codes.AlreadyExists:      fila.ErrQueueAlreadyExists,
		codes.PermissionDenied:   fila.ErrPermissionDenied,
		codes.ResourceExhausted:  fila.ErrResourceExhausted,
		codes.FailedPrecondition: fila.ErrInternal,
		codes.Aborted:            fila.ErrInternal,
		codes.OutOfRange:         fila.ErrInternal,
		codes.Unimplemented:      fila.ErrUnimplemented,
		codes.Internal:           fila.ErrInternal,
		codes.Unavailable:        fila.ErrUnavailable,
		codes.DataLoss:           fila.ErrInternal,
		codes.Unauthenticated:    fila.ErrUnauthenticated,
	}
	for code, kind := range kinds {
		b.script("DeleteQueue", refuse(code, "", ""))
		err := deleteQueue(t.Context(), client, "orders")
		failure := wantKind(t, err, kind)
		equal(t, code.String(), failure.Code, code)
		if failure.Error() == "" {
			t.Fatalf("%s without a text has none", code)
		}
		isRetryable := code == codes.ResourceExhausted || code == codes.Unavailable ||
			code == codes.DeadlineExceeded
		equal(t, code.String()+" retryable", failure.Retryable, isRetryable)
		equal(t, "status in the chain", status.Code(err), code)
	}
}

func TestNotFoundMeansTheMostSpecificThingNamed(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	b.script("CancelMessage", refuse(codes.NotFound, "", ""))
	b.script("GetConfig", refuse(codes.NotFound, "", ""))
	wantKind(t, client.Cancel(t.Context(), "orders", "m-1"), fila.ErrMessageNotFound)
	_, err := client.GetConfig(t.Context(), "k")
	wantKind(t, err, fila.ErrInternal)
}

func TestReasonOfANewerBrokerFallsBackToTheStatus(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	b.script("DeleteQueue", refuse(codes.ResourceExhausted, "", "SOMETHING_NEW"))
	failure := wantKind(t, deleteQueue(t.Context(), client, "q"), fila.ErrResourceExhausted)
	equal(t, "reason", failure.Reason, "SOMETHING_NEW")
	b.script("AckBatch", replyWith(&filapb.AckBatchResponse{Results: []*filapb.ItemResult{{
		Error: &filapb.ItemError{Reason: 999, Message: "news"},
	}}}))
	failure = wantKind(t, client.Ack(t.Context(), "q", "m", ""), fila.ErrInternal)
	equal(t, "reason", failure.Reason, "999")
}

func TestNarrowerKindIsItsWiderOneToo(t *testing.T) {
	families := map[error][]error{
		fila.ErrInvalidArgument: {
			fila.ErrInvalidScript, fila.ErrNotADeadLetterQueue, fila.ErrMessageTooLarge,
		},
		fila.ErrResourceExhausted: {fila.ErrOverloaded, fila.ErrQueueFull, fila.ErrDiskFull},
		fila.ErrUnavailable:       {fila.ErrShuttingDown},
		fila.ErrInternal:          {fila.ErrStorageFailed},
	}
	for wider, narrower := range families {
		for _, kind := range narrower {
			if !errors.Is(kind, wider) || errors.Is(wider, kind) {
				t.Fatalf("%q is not narrower than %q", kind, wider)
			}
		}
	}
	if errors.Is(fila.ErrQueueNotFound, fila.ErrMessageNotFound) {
		t.Fatal("kinds are not told apart")
	}
}

func TestWrongNumberOfResultsIsInternal(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	b.script("EnqueueBatch", replyWith(&filapb.EnqueueBatchResponse{}))
	_, err := client.Enqueue(t.Context(), "orders", nil, nil)
	failure := wantKind(t, err, fila.ErrInternal)
	equal(t, "text", failure.Error(), "the broker gave 0 results for 1 items")
}

func TestAPIKeyIsCutOutOfThePeersText(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target, fila.WithAPIKey("s3cret"))
	b.script("DeleteQueue", refuse(codes.Unauthenticated, "key s3cret is unknown", ""))
	b.scriptConsume(refuseStream(codes.Unauthenticated, "key s3cret is unknown", ""))
	err := deleteQueue(t.Context(), client, "orders")
	equal(t, "text", wantKind(t, err, fila.ErrUnauthenticated).Error(), "key [redacted] is unknown")
	if _, isStatus := status.FromError(errors.Join(err)); isStatus {
		t.Fatal("gRPC's error, which holds the key, is still in the chain")
	}
	consumer, err := client.Consume(t.Context(), "orders")
	check(t, err)
	_, err = consumer.Next(context.Background())
	equal(t, "text", wantKind(t, err, fila.ErrUnauthenticated).Error(), "key [redacted] is unknown")
}
