// SPDX-License-Identifier: AGPL-3.0-only

package fila_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	fila "github.com/faiscadev/fila/sdks/go"
	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

var existing = refuse(codes.AlreadyExists, "it exists", "QUEUE_ALREADY_EXISTS")

func TestEnsureQueueCreatesWhatIsMissing(t *testing.T) {
	b := startBroker(t)
	b.script("CreateQueue", replyWith(&filapb.CreateQueueResponse{DeadLetterQueue: "orders.dlq"}))
	letters, err := newClient(t, b.target).EnsureQueue(t.Context(), "orders", fila.MaxAttempts(3))
	check(t, err)
	equal(t, "dead-letter queue", letters, "orders.dlq")
	request := b.seenOf("CreateQueue")[0].request.(*filapb.CreateQueueRequest)
	equal(t, "attempts", request.GetConfig().GetMaxAttempts(), 3)
	equal(t, "questions", len(b.seenOf("GetStats")), 0)
}

func TestEnsureQueueIsContentWithTheSettingsThatWereGiven(t *testing.T) {
	b := startBroker(t)
	b.script("CreateQueue", existing)
	b.script("GetStats", replyWith(&filapb.GetStatsResponse{Config: &filapb.QueueConfig{
		MaxAttempts: 3, VisibilityTimeoutMs: 60_000, RetryDelayMs: 17,
	}}))
	client := newClient(t, b.target)
	letters, err := client.EnsureQueue(t.Context(), "orders",
		fila.MaxAttempts(3), fila.VisibilityTimeout(time.Minute),
		fila.OnHookError(fila.HookErrorDefault)) // As it is where nobody has said so.
	check(t, err)
	equal(t, "dead-letter queue", letters, "orders.dlq")
	equal(t, "keys asked for", b.seenOf("GetStats")[0].request.(*filapb.GetStatsRequest).
		GetMaxKeys(), 1)
}

func TestEnsureQueueNamesWhatDiffers(t *testing.T) {
	b := startBroker(t)
	b.script("CreateQueue", existing)
	b.script("GetStats", replyWith(&filapb.GetStatsResponse{Config: &filapb.QueueConfig{
		MaxAttempts: 3, VisibilityTimeoutMs: 30_000, RetryDelayMs: 17,
		OnEnqueueScript: strings.Repeat("-", 500),
		OnHookError:     filapb.HookErrorPolicy_HOOK_ERROR_POLICY_REJECT,
	}}))
	_, err := newClient(t, b.target).EnsureQueue(t.Context(), "orders",
		fila.MaxAttempts(5), fila.VisibilityTimeout(time.Minute),
		fila.RetryDelay(17*time.Millisecond), fila.OnEnqueueScript("a"),
		fila.OnHookError(fila.HookErrorDefault))
	failure := wantKind(t, err, fila.ErrQueueAlreadyExists)
	equal(t, "queue", failure.Queue, "orders")
	equal(t, "reason", failure.Reason, "QUEUE_ALREADY_EXISTS")
	equal(t, "text", failure.Error(), `queue "orders" exists with other settings: `+
		"max_attempts is 3, not 5, visibility_timeout_ms is 30000, not 60000, "+
		`on_enqueue_script is "`+strings.Repeat("-", 80)+`...", not "a", `+
		`on_hook_error is "reject", not "default"; UpdateQueue changes them`)
	equal(t, "changes", len(b.seenOf("UpdateQueue")), 0)
}

func TestEnsureQueueCreatesOnceMoreWhatWasDeletedMeanwhile(t *testing.T) {
	b := startBroker(t)
	created := &filapb.CreateQueueResponse{DeadLetterQueue: "orders.dlq"}
	b.script("CreateQueue", func(ctx context.Context, request proto.Message) (proto.Message, error) {
		if len(b.seenOf("CreateQueue")) == 1 {
			return existing(ctx, request)
		}
		return created, nil
	})
	b.script("GetStats", refuse(codes.NotFound, "it does not exist", "QUEUE_NOT_FOUND"))
	client := newClient(t, b.target)
	letters, err := client.EnsureQueue(t.Context(), "orders", fila.MaxAttempts(3))
	check(t, err)
	equal(t, "dead-letter queue", letters, "orders.dlq")
	b.script("CreateQueue", existing)
	_, err = client.EnsureQueue(t.Context(), "orders", fila.MaxAttempts(3))
	wantKind(t, err, fila.ErrQueueAlreadyExists)
	equal(t, "creations", len(b.seenOf("CreateQueue")), 4)
}

func TestEnsureQueueFailsAsCreateQueueDoes(t *testing.T) {
	b := startBroker(t)
	b.script("CreateQueue", refuse(codes.InvalidArgument, "no Lua", "INVALID_SCRIPT"))
	client := newClient(t, b.target)
	_, err := client.EnsureQueue(t.Context(), "orders", fila.OnEnqueueScript("("))
	wantKind(t, err, fila.ErrInvalidScript)
	b.script("CreateQueue", existing)
	b.script("GetStats", refuse(codes.PermissionDenied, "not yours", "PERMISSION_DENIED"))
	_, err = client.EnsureQueue(t.Context(), "orders")
	wantKind(t, err, fila.ErrPermissionDenied)
}
