// SPDX-License-Identifier: AGPL-3.0-only

package fila_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fila "github.com/faiscadev/fila/sdks/go"
	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

func consume(t *testing.T, client *fila.Client, options ...fila.ConsumeOption) *fila.Consumer {
	t.Helper()
	consumer, err := client.Consume(t.Context(), "orders", options...)
	check(t, err)
	return consumer
}

func next(t *testing.T, consumer *fila.Consumer) *fila.ConsumeMessage {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	message, err := consumer.Next(ctx)
	check(t, err)
	return message
}

// released is the ids that were given back, in order, all requests taken together.
func released(t *testing.T, b *broker) string {
	t.Helper()
	var ids []string
	for _, call := range b.seenOf("NackBatch") {
		for _, nack := range call.request.(*filapb.NackBatchRequest).GetNacks() {
			if nack.RetryAfterMs == nil || nack.GetRetryAfterMs() != 0 {
				t.Fatalf("message %s was not given back but failed", nack.GetMessageId())
			}
			equal(t, "token", nack.GetLeaseToken(), "token-of-"+nack.GetMessageId())
			equal(t, "queue", nack.GetQueue(), "orders")
			ids = append(ids, nack.GetMessageId())
		}
	}
	return strings.Join(ids, " ")
}

func TestConsumerIsOpenedWithItsOptions(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	consume(t, client)
	b.waitForCalls("Consume", 1)
	consume(t, client, fila.WithMaxInFlight(7), fila.WithBatchSize(3),
		fila.WithVisibilityTimeout(time.Second))
	calls := b.waitForCalls("Consume", 2)
	usual, chosen := calls[0].request.(*filapb.ConsumeRequest),
		calls[1].request.(*filapb.ConsumeRequest)
	equal(t, "max in flight", usual.GetMaxInFlight(), 64)
	equal(t, "batch size", usual.GetMaxBatch(), 32)
	equal(t, "visibility timeout", usual.GetVisibilityTimeoutMs(), 0)
	equal(t, "max in flight", chosen.GetMaxInFlight(), 7)
	equal(t, "batch size", chosen.GetMaxBatch(), 3)
	equal(t, "visibility timeout", chosen.GetVisibilityTimeoutMs(), 1000)
	equal(t, "deadline of a stream", calls[0].left, 0)
}

func TestStreamHasNoDeadlineEvenIfItsContextHasOne(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	ctx := newExpiring(t)
	consumer, err := client.Consume(ctx, "orders")
	check(t, err)
	equal(t, "deadline", b.waitForCalls("Consume", 1)[0].left, 0)
	ctx.expire()
	_, err = consumer.Next(context.Background())
	wantKind(t, err, fila.ErrDeadlineExceeded)
}

func TestMessagesAreHandedOutInOrderAndCanBeSettled(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	b.scriptConsume(frames(frame("m-1", "m-2"), frame("m-3")))
	consumer := consume(t, client)
	var ids []string
	for message := range consumer.Messages() {
		check(t, message.Ack(t.Context()))
		if ids = append(ids, message.ID); len(ids) == 3 {
			break
		}
	}
	check(t, consumer.Err())
	equal(t, "ids", strings.Join(ids, " "), "m-1 m-2 m-3")
	equal(t, "acks", len(b.seenOf("AckBatch")), 3)
}

func TestFramesAreReadAsTheyCome(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	sent := make(chan struct{})
	b.scriptConsume(func(stream grpc.ServerStream, _ *filapb.ConsumeRequest) error {
		// More than flow control lets through while nobody reads.
		large := frame("m")
		large.Messages[0].Payload = make([]byte, 1<<20)
		for range 20 {
			if err := stream.SendMsg(large); err != nil {
				return err
			}
		}
		close(sent)
		return idle(stream)
	})
	consumer := consume(t, client)
	select {
	case <-sent:
	case <-time.After(patience):
		t.Fatal("nobody reads while nobody asks for a message")
	}
	check(t, consumer.Close())
}

func TestConsumerIsSharedByGoroutines(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	var ids []string
	for n := range 200 {
		ids = append(ids, strconv.Itoa(n))
	}
	b.scriptConsume(frames(frame(ids[:100]...), frame(ids[100:]...)))
	consumer := consume(t, client)
	var seen sync.Map
	var count atomic.Int32
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for message := range consumer.Messages() {
				if _, isTwice := seen.LoadOrStore(message.ID, true); isTwice {
					t.Errorf("message %s was handed out twice", message.ID)
				}
				if count.Add(1) == 200 {
					_ = consumer.Close()
				}
			}
		})
	}
	workers.Wait()
	equal(t, "messages", count.Load(), 200)
	check(t, consumer.Err())
}

func TestConsumerReconnectsWhenTheStreamFailsOrEnds(t *testing.T) {
	b := startBroker(t)
	log := &safeBuffer{}
	logger := fila.WithLogger(slog.New(slog.NewTextHandler(log, nil)))
	client := newClient(t, b.target, quick, logger)
	var streams atomic.Int32
	b.scriptConsume(func(stream grpc.ServerStream, _ *filapb.ConsumeRequest) error {
		n := streams.Add(1)
		if err := stream.SendMsg(frame(fmt.Sprintf("m-%d", n))); err != nil {
			return err
		}
		switch n {
		case 1:
			return status.Error(codes.Unavailable, "going away")
		case 2:
			return nil
		}
		return idle(stream)
	})
	consumer := consume(t, client)
	for n := range 3 {
		equal(t, "id", next(t, consumer).ID, fmt.Sprintf("m-%d", n+1))
	}
	check(t, consumer.Close())
	for _, want := range []string{"going away", "the broker ended it", "queue=orders"} {
		if !strings.Contains(log.String(), want) {
			t.Fatalf("the log does not say %q: %s", want, log)
		}
	}
}

func TestConsumerOutlivesARestartOfTheBroker(t *testing.T) {
	b := startBrokerAt(t, freeAddress(t), frames(frame("before")))
	client := newClient(t, b.target, quick)
	consumer := consume(t, client)
	equal(t, "id", next(t, consumer).ID, "before")
	b.stop()
	startBrokerAt(t, b.target, frames(frame("after")))
	equal(t, "id", next(t, consumer).ID, "after")
}

func TestConsumerWaitsForABrokerThatIsNotThereYet(t *testing.T) {
	address := freeAddress(t)
	client := newClient(t, address, quick)
	consumer := consume(t, client)
	startBrokerAt(t, address, frames(frame("m-1")))
	equal(t, "id", next(t, consumer).ID, "m-1")
}

func TestLogSaysOnceThatAStreamWasLostAndOnceThatItIsThere(t *testing.T) {
	address := freeAddress(t)
	log, logger := debugLog()
	client := newClient(t, address, quick, logger)
	consumer := consume(t, client)
	eventually(t, "the log says that nobody is there", func() bool {
		return strings.Contains(log.String(), "was lost")
	})
	var attempts atomic.Int32
	startBrokerAt(t, address, func(stream grpc.ServerStream, r *filapb.ConsumeRequest) error {
		if attempts.Add(1) < 4 {
			return status.Error(codes.Unavailable, "not yet")
		}
		return frames(frame("m-1"))(stream, r)
	})
	equal(t, "id", next(t, consumer).ID, "m-1")
	equal(t, "attempts", attempts.Load(), 4)
	equal(t, "lines", strings.Count(log.String(), "was lost"), 1)
	equal(t, "lines", strings.Count(log.String(), "is there again"), 1)
}

func TestFinalErrorReachesAllThatWait(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	gate := make(chan struct{})
	b.scriptConsume(func(stream grpc.ServerStream, r *filapb.ConsumeRequest) error {
		<-gate
		if err := stream.SendMsg(frame("m-1", "m-2")); err != nil {
			return err
		}
		return refuseStream(codes.NotFound, "", "QUEUE_NOT_FOUND")(stream, r)
	})
	consumer := consume(t, client)
	var handed atomic.Int32
	var waiting sync.WaitGroup
	for range 8 {
		waiting.Go(func() {
			for {
				_, err := consumer.Next(t.Context())
				if err != nil {
					if !errors.Is(err, fila.ErrQueueNotFound) {
						t.Error(err)
					}
					return
				}
				handed.Add(1)
			}
		})
	}
	close(gate)
	waiting.Wait()
	equal(t, "handed out", handed.Load(), 2)
}

func TestNextWithAnEndedContextTakesNothing(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	b.scriptConsume(frames(frame("m-1", "m-2")))
	consumer := consume(t, client)
	equal(t, "id", next(t, consumer).ID, "m-1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := consumer.Next(ctx)
	wantKind(t, err, fila.ErrCanceled)
	equal(t, "id", next(t, consumer).ID, "m-2")
}

func TestFinalErrorEndsTheConsumerAfterItsMessages(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	b.scriptConsume(func(stream grpc.ServerStream, r *filapb.ConsumeRequest) error {
		if err := stream.SendMsg(frame("m-1")); err != nil {
			return err
		}
		return refuseStream(codes.NotFound, "the queue is gone", "QUEUE_NOT_FOUND")(stream, r)
	})
	consumer := consume(t, client)
	count := 0
	for range consumer.Messages() {
		count++
	}
	equal(t, "messages", count, 1)
	failure := wantKind(t, consumer.Err(), fila.ErrQueueNotFound)
	equal(t, "text", failure.Error(), "the queue is gone")
	equal(t, "queue", failure.Queue, "orders")
	_, err := consumer.Next(t.Context())
	wantKind(t, err, fila.ErrQueueNotFound)
	check(t, consumer.Close())
	wantKind(t, consumer.Err(), fila.ErrQueueNotFound)
}

func TestUnknownQueueWithoutAReasonIsQueueNotFound(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	b.scriptConsume(refuseStream(codes.NotFound, "", ""))
	_, err := consume(t, client).Next(t.Context())
	wantKind(t, err, fila.ErrQueueNotFound)
}

func TestTextOfAConsumeThatIsNotUTF8IsRefused(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	consumer, err := client.Consume(t.Context(), "\xff")
	check(t, err)
	_, err = consumer.Next(t.Context())
	failure := wantKind(t, err, fila.ErrInvalidArgument)
	equal(t, "text", failure.Error(), "queue is not valid UTF-8")
}

func TestEarlyCloseGivesBackWhatNobodyTook(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	arrived := b.scriptArrivals(frame("m-1", "m-2", "m-3"), frame("m-4"))
	consumer := consume(t, client)
	equal(t, "id", next(t, consumer).ID, "m-1")
	arrived(client)
	check(t, consumer.Close())
	equal(t, "given back", released(t, b), "m-2 m-3 m-4")
	_, err := consumer.Next(t.Context())
	if !errors.Is(err, io.EOF) {
		t.Fatalf("want io.EOF, got %v", err)
	}
	check(t, consumer.Err())
	check(t, consumer.Close())
	equal(t, "requests", len(b.seenOf("NackBatch")), 1)
}

func TestCloseOfAnIdleConsumerSendsNothing(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	consumer := consume(t, client)
	b.waitForCalls("Consume", 1)
	check(t, consumer.Close())
	equal(t, "requests", len(b.seenOf("NackBatch")), 0)
}

func TestCloseEndsAConsumerThatWaits(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	consumer := consume(t, client)
	b.waitForCalls("Consume", 1)
	done := make(chan error, 1)
	go func() {
		_, err := consumer.Next(context.Background())
		done <- err
	}()
	check(t, consumer.Close())
	if err := <-done; !errors.Is(err, io.EOF) {
		t.Fatalf("want io.EOF, got %v", err)
	}
}

func TestCloseDoesNotWaitForABrokerThatDoesNotAnswer(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	b.scriptConsume(frames(frame("m-1", "m-2")))
	b.script("NackBatch", held(nil, settleAll))
	consumer := consume(t, client)
	next(t, consumer)
	start := time.Now()
	check(t, consumer.Close())
	if took := time.Since(start); took > patience/2 {
		t.Fatalf("it took %v", took)
	}
}

func TestContextEndsItsConsumerAndGivesBack(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	b.scriptConsume(frames(frame("m-1", "m-2")))
	ctx, cancel := context.WithCancel(t.Context())
	consumer, err := client.Consume(ctx, "orders")
	check(t, err)
	next(t, consumer)
	cancel()
	eventually(t, "it is given back", func() bool { return released(t, b) == "m-2" })
	_, err = consumer.Next(context.Background())
	wantKind(t, err, fila.ErrCanceled)
	if !errors.Is(consumer.Err(), context.Canceled) {
		t.Fatal("the context's error is not in the chain")
	}
}

func TestNextThatIsCancelledLosesNoMessage(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	gate := make(chan struct{})
	b.scriptConsume(func(stream grpc.ServerStream, r *filapb.ConsumeRequest) error {
		<-gate
		return frames(frame("m-1"))(stream, r)
	})
	consumer := consume(t, client)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := consumer.Next(ctx)
	wantKind(t, err, fila.ErrDeadlineExceeded)
	close(gate)
	equal(t, "id", next(t, consumer).ID, "m-1")
	check(t, consumer.Err())
}

func TestClosingTheClientEndsItsConsumersWithoutAnError(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	b.scriptConsume(frames(frame("m-1", "m-2")))
	busy, waiting := consume(t, client), consume(t, client)
	next(t, busy)
	next(t, waiting)
	next(t, waiting)
	done := make(chan error, 1)
	go func() {
		_, err := waiting.Next(context.Background())
		done <- err
	}()
	check(t, client.Close())
	if err := <-done; !errors.Is(err, io.EOF) {
		t.Fatalf("want io.EOF, got %v", err)
	}
	check(t, errors.Join(busy.Err(), waiting.Err()))
	equal(t, "given back", released(t, b), "m-2")
	_, err := client.Consume(t.Context(), "orders")
	wantKind(t, err, fila.ErrClientClosed)
}

func TestNothingRunsOnAfterClose(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	b.scriptConsume(frames(frame("m-1", "m-2")))
	next(t, consume(t, client))
	_, err := client.Enqueue(t.Context(), "orders", nil, nil)
	check(t, err)
	check(t, client.Close())
	eventually(t, "no goroutine of the client is left", func() bool {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		return !bytes.Contains(stacks, []byte("fila.(*Consumer)")) &&
			!bytes.Contains(stacks, []byte("fila.(*coalescer["))
	})
}

// safeBuffer is a log that a test may read while it is written.
type safeBuffer struct {
	lock sync.Mutex
	text bytes.Buffer
}

func (b *safeBuffer) Write(line []byte) (int, error) {
	b.lock.Lock()
	defer b.lock.Unlock()
	return b.text.Write(line)
}

func (b *safeBuffer) String() string {
	b.lock.Lock()
	defer b.lock.Unlock()
	return b.text.String()
}

func TestBatchesAreOfWhatIsThere(t *testing.T) {
	b := startBroker(t)
	arrive := b.scriptArrivals(frame("a", "b", "c", "d"), frame("e"))
	client := newClient(t, b.target)
	consumer := consume(t, client)
	arrive(client)
	var sizes []int
	for messages := range consumer.Batches(3) {
		for _, message := range messages {
			if len(sizes) == 0 {
				equal(t, "the first one", message.ID, "a")
			}
			sizes = append(sizes, len(messages))
		}
		if len(sizes) == 5 {
			break
		}
	}
	equal(t, "sizes of the batches of each message", fmt.Sprint(sizes), "[3 3 3 2 2]")
	check(t, consumer.Err())
	check(t, consumer.Close())
	for range consumer.Batches(1) {
		t.Fatal("a closed consumer gave a batch")
	}
	defer func() {
		equal(t, "panic", fmt.Sprint(recover()),
			"fila: batches of at most 0 messages; give a positive number")
	}()
	consumer.Batches(0)
}
