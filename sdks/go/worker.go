// SPDX-License-Identifier: AGPL-3.0-only

// Workers: a consumer, a number of handlers, and a stop that loses nothing. What becomes of each
// message is in handling.go.
//
//	consumer --message--> slot: handler --outcome--> settlement, beside the handlers
//
// A worker has as many slots as handlers may run at a time. Each takes a message, or a batch of
// what is there, and another one as soon as its handler has returned. A stop closes the consumer,
// which gives back what no handler has seen; handlers get the grace to finish, and are cancelled at
// its end. Run returns when all is settled, which does not need a handler that ignores its context.

package fila

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

const (
	defaultConcurrency = 10
	// Within the half a minute that process managers give before they kill.
	defaultGrace = 20 * time.Second
)

// Handler does what is to be done with a message. When it returns nil the message is acked, unless
// the handler settled it by its methods. A *Backpressure puts it off and a *DeadLetter ends it,
// wrapped or not; any other error, and a panic, is a failure: the message is nacked.
//
// Its context ends with the handler timeout, and at the end of the grace after a stop, not with the
// context of Run. It has the values of that, and the span of the handling.
type Handler func(ctx context.Context, message *ConsumeMessage) error

// BatchHandler does the same with several messages. What it returns is the outcome of all of them
// that it did not settle by their methods.
type BatchHandler func(ctx context.Context, messages []*ConsumeMessage) error

// Middleware makes a handler of another, which it calls.
type Middleware func(next Handler) Handler

// BatchMiddleware is Middleware of handlers of batches.
type BatchMiddleware func(next BatchHandler) BatchHandler

type workerSettings struct {
	concurrency       uint32
	batchSize         uint32
	prefetch          uint32
	visibilityTimeout time.Duration
	handlerTimeout    time.Duration
	grace             time.Duration
	middleware        []Middleware
	batchMiddleware   []BatchMiddleware
	onEvent           func(Event)
}

// WorkerOption is a choice about one worker, for Client.Worker and Client.BatchWorker.
type WorkerOption interface{ toWorker(*workerSettings) }

type workerOption func(*workerSettings)

func (o workerOption) toWorker(s *workerSettings) { o(s) }

// WithConcurrency sets how many handlers run at a time; 10 unless set.
func WithConcurrency(count uint32) WorkerOption {
	return workerOption(func(s *workerSettings) { s.concurrency = count })
}

// WithPrefetch sets the most messages leased to the worker at a time, with those in its handlers:
// twice as many as can be handled unless set, and never fewer than can be handled.
func WithPrefetch(count uint32) WorkerOption {
	return workerOption(func(s *workerSettings) { s.prefetch = count })
}

// WithHandlerTimeout sets after which time a handler has failed; never unless set. Its context ends
// then. A handler that goes on keeps its place, and what it returns is ignored.
func WithHandlerTimeout(timeout time.Duration) WorkerOption {
	return workerOption(func(s *workerSettings) { s.handlerTimeout = timeout })
}

// WithGrace sets what handlers get to finish when the context of Run ends; 20 s unless set.
func WithGrace(grace time.Duration) WorkerOption {
	return workerOption(func(s *workerSettings) { s.grace = grace })
}

// WithMiddleware puts something around the handler of Client.Worker; the first one is outermost.
func WithMiddleware(middleware ...Middleware) WorkerOption {
	return workerOption(func(s *workerSettings) {
		s.middleware = append(s.middleware, middleware...)
	})
}

// WithBatchMiddleware is WithMiddleware for Client.BatchWorker.
func WithBatchMiddleware(middleware ...BatchMiddleware) WorkerOption {
	return workerOption(func(s *workerSettings) {
		s.batchMiddleware = append(s.batchMiddleware, middleware...)
	})
}

// WithOnEvent has a function called with everything that becomes of messages, from many goroutines
// at once. The worker waits for it.
func WithOnEvent(tell func(Event)) WorkerOption {
	return workerOption(func(s *workerSettings) { s.onEvent = tell })
}

// Worker handles the messages of a queue until it is stopped. Create it with Client.Worker or
// Client.BatchWorker, and run it once.
type Worker struct {
	client *Client
	queue  string
	chosen workerSettings
	handle BatchHandler

	// stopping is closed when nothing more is taken, inGrace ends when handlers are cancelled.
	stopping chan struct{}
	inGrace  context.Context
	endGrace context.CancelFunc
	// settling has an entry for each settlement under way.
	settling chan struct{}

	lock        sync.Mutex
	hasRun      bool
	isStopping  bool
	graceEndsAt time.Time
	// unsettled is how many slots wait for a message, or have one that is not settled; settled is
	// told when there is none.
	unsettled int
	settled   *sync.Cond
}

// Worker makes a worker that handles messages of a queue one by one, several at a time. Fails with
// ErrInvalidArgument when an option cannot be used.
func (c *Client) Worker(queue string, handler Handler, options ...WorkerOption) (*Worker, error) {
	worker, err := c.newWorker(queue, 1, options)
	if err != nil {
		return nil, err
	}
	if len(worker.chosen.batchMiddleware) > 0 {
		return nil, invalid("batch middleware needs a batch worker", subject{queue: queue})
	}
	if handler == nil {
		return nil, invalid("handler must not be nil", subject{queue: queue})
	}
	for _, around := range slices.Backward(worker.chosen.middleware) {
		handler = around(handler)
	}
	worker.handle = func(ctx context.Context, messages []*ConsumeMessage) error {
		return handler(ctx, messages[0])
	}
	return worker, nil
}

// BatchWorker makes a worker whose handler gets up to so many messages, of what is there: nobody
// waits for a batch to fill. Fails as Worker does.
func (c *Client) BatchWorker(
	queue string, batchSize uint32, handler BatchHandler, options ...WorkerOption,
) (*Worker, error) {
	worker, err := c.newWorker(queue, batchSize, options)
	if err != nil {
		return nil, err
	}
	if len(worker.chosen.middleware) > 0 {
		return nil, invalid("a batch worker needs batch middleware", subject{queue: queue})
	}
	if handler == nil {
		return nil, invalid("handler must not be nil", subject{queue: queue})
	}
	for _, around := range slices.Backward(worker.chosen.batchMiddleware) {
		handler = around(handler)
	}
	worker.handle = handler
	return worker, nil
}

func (c *Client) newWorker(
	queue string, batchSize uint32, options []WorkerOption,
) (*Worker, error) {
	chosen := workerSettings{
		concurrency: defaultConcurrency, batchSize: batchSize, grace: defaultGrace,
	}
	for _, option := range options {
		option.toWorker(&chosen)
	}
	if err := chosen.check(); err != nil {
		return nil, invalid(err.Error(), subject{queue: queue})
	}
	handled := uint64(chosen.concurrency) * uint64(chosen.batchSize)
	wanted := uint64(chosen.prefetch)
	if wanted == 0 {
		wanted = 2 * handled
	}
	chosen.prefetch = uint32(min(max(wanted, handled), math.MaxUint32))
	worker := &Worker{
		client:   c,
		queue:    queue,
		chosen:   chosen,
		stopping: make(chan struct{}),
		settling: make(chan struct{}, chosen.prefetch),
	}
	worker.inGrace, worker.endGrace = context.WithCancel(context.Background())
	worker.settled = sync.NewCond(&worker.lock)
	return worker, nil
}

func (s workerSettings) check() error {
	switch {
	case s.concurrency == 0:
		return errors.New("concurrency must be positive")
	case s.batchSize == 0:
		return errors.New("batch size must be positive")
	case s.visibilityTimeout < 0:
		return fmt.Errorf("visibility timeout must not be negative, got %v", s.visibilityTimeout)
	case s.handlerTimeout < 0:
		return fmt.Errorf("handler timeout must not be negative, got %v", s.handlerTimeout)
	case s.grace < 0:
		return fmt.Errorf("grace must not be negative, got %v", s.grace)
	}
	return nil
}

// Run handles messages until ctx ends, Stop is called or the client is closed, and returns nil
// then; use signal.NotifyContext to stop at a signal. A broker that is away is waited for. What
// else ends a consumer, such as ErrQueueNotFound or ErrPermissionDenied, is returned when the
// handlers have returned. When Run returns, all is settled; a handler that ignored the end of the
// grace may still run, and its message was given back.
func (w *Worker) Run(ctx context.Context) error {
	if isFirst, isStopping := w.start(); !isFirst {
		return invalid("a worker runs only once", subject{queue: w.queue})
	} else if isStopping || ctx.Err() != nil {
		return nil
	}
	consumer, err := w.client.startConsumer(context.WithoutCancel(ctx), consumeSettings{
		queue:             w.queue,
		maxInFlight:       w.chosen.prefetch,
		batchSize:         min(max(defaultBatchSize, w.chosen.batchSize), w.chosen.prefetch),
		visibilityTimeout: w.chosen.visibilityTimeout,
		extendsLeases:     true,
		isWorkers:         true,
	})
	if err != nil {
		return err
	}
	defer func() { _ = consumer.Close() }() // It returns nil.
	handling, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(w.inGrace, end)()
	defer context.AfterFunc(ctx, func() { w.Stop(w.chosen.grace) })()

	var slots sync.WaitGroup
	for range w.chosen.concurrency {
		slots.Add(1)
		go w.serve(handling, consumer, &slots)
	}
	finished := make(chan struct{})
	go func() {
		slots.Wait()
		close(finished)
	}()
	select {
	case <-finished: // The consumer has ended.
	case <-w.stopping:
		_ = consumer.Close() // It returns nil.
		select {
		case <-finished:
		case <-w.inGrace.Done():
		}
	}
	w.waitUntilSettled()
	return consumer.Err()
}

func (w *Worker) start() (isFirst, isStopping bool) {
	w.lock.Lock()
	defer w.lock.Unlock()
	isFirst, w.hasRun = !w.hasRun, true
	return isFirst, w.isStopping
}

// Stop has Run take no more messages and give handlers that long to finish. It returns at once. A
// stop that is under way can be shortened; 0 ends the grace. Before Run it keeps that from taking
// any.
func (w *Worker) Stop(grace time.Duration) {
	w.lock.Lock()
	defer w.lock.Unlock()
	if !w.isStopping {
		w.isStopping = true
		close(w.stopping)
	}
	endsAt := time.Now().Add(grace)
	if !w.graceEndsAt.IsZero() && !endsAt.Before(w.graceEndsAt) {
		return
	}
	w.graceEndsAt = endsAt
	if grace <= 0 {
		w.endGrace()
		return
	}
	// Earlier timers come later, and find it done.
	time.AfterFunc(grace, w.endGrace)
}

// serve is one slot: it takes messages and handles them until the consumer ends.
func (w *Worker) serve(ctx context.Context, consumer *Consumer, slots *sync.WaitGroup) {
	hasEnded := false
	defer func() {
		if hasEnded {
			slots.Done()
		} else { // The handler ended its goroutine, so another one takes the place.
			go w.serve(ctx, consumer, slots)
		}
	}()
	for {
		if w.isStopped() { // A handler that was cut may return before the consumer is closed.
			hasEnded = true
			return
		}
		w.count(1)
		messages, err := consumer.next(context.Background(), int(w.chosen.batchSize))
		if err != nil {
			w.count(-1)
			hasEnded = true
			return
		}
		w.process(ctx, messages)
	}
}

func (w *Worker) isStopped() bool {
	w.lock.Lock()
	defer w.lock.Unlock()
	return w.isStopping
}

// count is told when a slot begins to wait for a message, and when that is settled.
func (w *Worker) count(change int) {
	w.lock.Lock()
	defer w.lock.Unlock()
	if w.unsettled += change; w.unsettled == 0 {
		w.settled.Broadcast()
	}
}

func (w *Worker) waitUntilSettled() {
	w.lock.Lock()
	defer w.lock.Unlock()
	for w.unsettled > 0 {
		w.settled.Wait()
	}
}
