// SPDX-License-Identifier: AGPL-3.0-only

// The RPCs that take many items and answer each on its own, and calls too large for one of them:
// split, sent one after the other, put together again. Never two requests of one call at once, so
// that messages are stored in the order of the list; and nothing is sent after a request that
// failed as a whole.

package fila

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

const (
	// The broker handles a batch as a whole, so everybody else waits for it: a thousand messages
	// take some 15 ms.
	batchItemsMax = 1000
	// Below gRPC's customary 4 MiB, so that any broker takes it. A larger message travels alone.
	batchBytesMax = 1 << 20
)

// outcome is what became of one item.
type outcome[R any] struct {
	value R
	err   error
	// wasSent says that an earlier request with the item may have been applied.
	wasSent bool
}

// batch sends items as one request. An error is that of the request, and so of every item.
type batch[R any] func(
	ctx context.Context, c *connection, items []item, trace map[string]string,
) ([]outcome[R], error)

func enqueueBatch(
	ctx context.Context, c *connection, items []item, trace map[string]string,
) ([]outcome[EnqueueResult], error) {
	request := &filapb.EnqueueBatchRequest{}
	join(request, items)
	wrapped := &filapb.PipelineRequest{Call: &filapb.PipelineRequest_Enqueue{Enqueue: request}}
	answer, err := carry(ctx, c.enqueues, c.service.EnqueueBatch, request, trace,
		wrapped, (*filapb.PipelineResponse).GetEnqueue)
	if err != nil {
		return nil, err
	}
	return outcomes(answer.GetResults(), items, func(result *filapb.EnqueueResult) EnqueueResult {
		return EnqueueResult{MessageID: result.GetMessageId(), IsDuplicate: result.GetDuplicate()}
	})
}

func ackBatch(
	ctx context.Context, c *connection, items []item, trace map[string]string,
) ([]outcome[struct{}], error) {
	request := &filapb.AckBatchRequest{}
	join(request, items)
	wrapped := &filapb.PipelineRequest{Call: &filapb.PipelineRequest_Ack{Ack: request}}
	answer, err := carry(ctx, c.settlements, c.service.AckBatch, request, trace,
		wrapped, (*filapb.PipelineResponse).GetAck)
	if err != nil {
		return nil, err
	}
	return outcomes(answer.GetResults(), items, readNothing)
}

func nackBatch(
	ctx context.Context, c *connection, items []item, trace map[string]string,
) ([]outcome[struct{}], error) {
	request := &filapb.NackBatchRequest{}
	join(request, items)
	wrapped := &filapb.PipelineRequest{Call: &filapb.PipelineRequest_Nack{Nack: request}}
	answer, err := carry(ctx, c.settlements, c.service.NackBatch, request, trace,
		wrapped, (*filapb.PipelineResponse).GetNack)
	if err != nil {
		return nil, err
	}
	return outcomes(answer.GetResults(), items, readNothing)
}

func extendBatch(
	ctx context.Context, c *connection, items []item, trace map[string]string,
) ([]outcome[time.Time], error) {
	request := &filapb.ExtendLeaseRequest{}
	join(request, items)
	wrapped := &filapb.PipelineRequest{Call: &filapb.PipelineRequest_Extend{Extend: request}}
	answer, err := carry(ctx, c.settlements, c.service.ExtendLease, request, trace,
		wrapped, (*filapb.PipelineResponse).GetExtend)
	if err != nil {
		return nil, err
	}
	return outcomes(answer.GetResults(), items, func(result *filapb.ExtendLeaseResult) time.Time {
		return moment(result.GetLeaseExpiresAt())
	})
}

func readNothing(*filapb.ItemResult) struct{} { return struct{}{} }

func outcomes[P interface{ GetError() *filapb.ItemError }, R any](
	results []P, items []item, read func(P) R,
) ([]outcome[R], error) {
	if len(results) != len(items) {
		text := fmt.Sprintf("the broker gave %d results for %d items", len(results), len(items))
		return nil, newError(ErrInternal, codes.Internal, text, subject{}, nil)
	}
	found := make([]outcome[R], len(items))
	for i, result := range results {
		if refused := result.GetError(); refused != nil {
			found[i].err = itemError(reasonName(refused), refused.GetMessage(), items[i].about)
		} else {
			found[i].value = read(result)
		}
	}
	return found, nil
}

// reasonName is a number where the broker is newer than this package.
func reasonName(refused *filapb.ItemError) string {
	name, isKnown := filapb.ErrorReason_name[int32(refused.GetReason())]
	if !isKnown {
		return strconv.Itoa(int(refused.GetReason()))
	}
	return strings.TrimPrefix(name, "ERROR_REASON_")
}

// fits says whether a batch of that many items and bytes can take one more.
func fits(count, size int, next item) bool {
	return count == 0 || count < batchItemsMax && size+len(next.data) <= batchBytesMax
}

// firstBatch is how many of the items make up one request.
func firstBatch(items []item) int {
	count, size := 0, 0
	for count < len(items) && fits(count, size, items[count]) {
		size += len(items[count].data)
		count++
	}
	return count
}

// sendMany sends all items, each request with its own deadline unless the context has one. One
// outcome for each item, in order.
func sendMany[R any](
	ctx context.Context, c *connection, send batch[R], items []item,
) []outcome[R] {
	found, _ := sendAll(ctx, c, send, items)
	return found
}

// sendAll is sendMany that also says what a request failed with.
func sendAll[R any](
	ctx context.Context, c *connection, send batch[R], items []item,
) ([]outcome[R], error) {
	found := make([]outcome[R], 0, len(items))
	trace := traceOf(ctx)
	for len(items) > 0 {
		count := firstBatch(items)
		answers, err := sendOne(ctx, c, send, items[:count], trace)
		if err != nil {
			found = failed(found, items[:count], err)
			return failed(found, items[count:], notSentAfter(err)), err
		}
		found = append(found, answers...)
		items = items[count:]
	}
	return found, nil
}

func sendOne[R any](
	ctx context.Context, c *connection, send batch[R], items []item, trace map[string]string,
) (answers []outcome[R], err error) {
	ctx, cancel := c.withDeadline(ctx, 0)
	defer cancel()
	isRepeatable := true
	for _, each := range items {
		isRepeatable = isRepeatable && each.isRepeatable
	}
	wasSent := false
	err = c.retrying(ctx, isRepeatable, func(isRepeat bool) error {
		wasSent = isRepeat
		answers, err = send(ctx, c, items, trace)
		return err
	})
	for i := range answers {
		items[i].wasSent = items[i].wasSent || wasSent
		answers[i].wasSent = items[i].wasSent
		answers[i].err = items[i].settled(answers[i].err)
	}
	return answers, err
}

func failed[R any](found []outcome[R], items []item, err error) []outcome[R] {
	for _, each := range items {
		found = append(found, outcome[R]{err: named(err, each.about)})
	}
	return found
}

func notSentAfter(err error) error {
	after := *failureOf(err)
	after.Message = "not sent, because an earlier request of this call failed: " + after.Message
	return &after
}
