// SPDX-License-Identifier: AGPL-3.0-only

// A stream of leased messages that outlives its connection.
//
//	open --frame--> frames --> application            Close, or its context, ends it
//	 ^                |
//	 '-- wait <-- UNAVAILABLE, or the broker ended the stream      any other error is final
//
// One goroutine owns the stream. It reads frames as they come, since only then is it known when
// their leases began; the broker's credit bounds what waits here. Nothing is handed out whose lease
// has ended. What was never handed out goes back at the end: otherwise every restart of a worker
// would hide those messages until their leases end, and count an attempt that nobody made.

package fila

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

const (
	// Giving messages back is a courtesy: their leases end anyway, so it may not hold up a
	// shutdown. First come the frames that have arrived, or are about to; then the request that
	// gives all of them back.
	drainTime      = 50 * time.Millisecond
	releaseTimeout = time.Second
)

// errEnding tells the reader that the consumer ends for a reason that is known elsewhere.
var errEnding = errors.New("the consumer ends")

// Consumer hands out the messages of a queue as the broker leases them. It is safe for concurrent
// use: each message goes to one caller. Until then its lease is extended. It has to be closed, or
// its context cancelled, to give back what nobody took.
type Consumer struct {
	client     *Client
	connection *connection
	request    *filapb.ConsumeRequest
	// keeper is nil where leases are not extended. isWorkers says that what was handed out stays
	// held, until it is released.
	keeper    *keeper
	isWorkers bool

	// ctx is that of the streams. It has no deadline: a stream lasts as long as the consumer.
	ctx    context.Context
	cancel context.CancelFunc

	// arrived has an entry when there may be something to take: whoever finds more than it takes
	// puts it back. ending is closed when nothing more is handed out, done when everything was
	// given back.
	arrived chan struct{}
	ending  chan struct{}
	done    chan struct{}

	lock sync.Mutex
	// frames is what was read and not handed out, waiting how many messages that is.
	frames  []*arrival
	waiting int
	// failure is why nothing more is read; it becomes err when all was handed out.
	failure error
	// err is why it ended; nil when it was closed.
	err error
	// isStreaming is true while there is a stream, on which frames may be about to arrive.
	isStreaming bool
	isEnding    bool

	// Only the reader knows these. key is what the stream was opened with.
	key      string
	stream   grpc.ServerStreamingClient[filapb.ConsumeResponse]
	openedAt time.Time
	attempts int
	// isLost says that the log says so.
	isLost bool
}

// arrival is what is left of a frame.
type arrival struct {
	frame *frame
	left  []*filapb.Message
}

// Next waits for the next message. It returns io.EOF after Close, the context's error when ctx
// ends first (no message is lost then), and otherwise what ended the consumer: ErrQueueNotFound,
// ErrPermissionDenied or whatever else trying again would not cure. That error stays.
func (c *Consumer) Next(ctx context.Context) (*ConsumeMessage, error) {
	found, err := c.next(ctx, 1)
	if err != nil {
		return nil, err
	}
	return found[0], nil
}

// next waits for a message, and returns up to so many if there are more.
func (c *Consumer) next(ctx context.Context, most int) ([]*ConsumeMessage, error) {
	for {
		if ctx.Err() != nil {
			return nil, ended(ctx, "while waiting for a message", c.subject())
		}
		if found, err := c.take(most); len(found) > 0 || err != nil {
			return found, err
		}
		select {
		case <-c.arrived:
		case <-c.ending:
		case <-ctx.Done():
		}
	}
}

// take hands out up to so many messages; none when there are none now, and the reason of the end
// after it.
func (c *Consumer) take(most int) ([]*ConsumeMessage, error) {
	found, raw, dropped, err := c.pick(most)
	c.reportDropped(dropped)
	for i, message := range found {
		message.Message = readMessage(raw[i])
	}
	return found, err
}

// pick is the part of it that the lock is held for.
func (c *Consumer) pick(most int) (
	found []*ConsumeMessage, raw []*filapb.Message, dropped int, err error,
) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.isEnding {
		if c.err != nil {
			return nil, nil, 0, c.err
		}
		return nil, nil, 0, io.EOF
	}
	now := time.Now()
	for len(found) < most && len(c.frames) > 0 {
		first := c.frames[0]
		next, place := first.left[0], first.frame.size-len(first.left)
		isFine := first.frame.handOut(place, now, c.isWorkers)
		if !isFine && !first.frame.isAlive(now) {
			dropped += c.dropFirstLocked()
			continue
		}
		c.waiting--
		if first.left = first.left[1:]; len(first.left) == 0 {
			c.frames[0], c.frames = nil, c.frames[1:]
		}
		if !isFine {
			dropped++
			continue
		}
		raw = append(raw, next)
		found = append(found, &ConsumeMessage{client: c.client, frame: first.frame, place: place})
	}
	switch {
	case len(c.frames) > 0 || c.failure != nil && len(found) > 0:
		c.signal()
	case c.failure != nil:
		c.finishLocked(c.failure)
		err = c.err
	}
	return found, raw, dropped, err
}

// dropFirstLocked forgets what is left of the first frame, and returns how much that was.
func (c *Consumer) dropFirstLocked() int {
	first := c.frames[0]
	c.frames[0], c.frames = nil, c.frames[1:]
	c.waiting -= len(first.left)
	first.frame.lose()
	return len(first.left)
}

func (c *Consumer) reportDropped(count int) {
	if count > 0 {
		c.connection.logger.Debug("messages dropped, their leases ended before they were handed out",
			"queue", c.request.GetQueue(), "count", count)
	}
}

// signal wakes one of those who wait.
func (c *Consumer) signal() {
	select {
	case c.arrived <- struct{}{}:
	default:
	}
}

// Messages iterates until the consumer ends; Err then says why. Leaving the loop keeps the consumer
// open.
func (c *Consumer) Messages() iter.Seq[*ConsumeMessage] {
	return func(yield func(*ConsumeMessage) bool) {
		for {
			message, err := c.Next(context.Background())
			if err != nil || !yield(message) {
				return
			}
		}
	}
}

// Batches iterates over what is there, at least one message and at most so many at a time, until
// the consumer ends; Err then says why. Nobody waits for a batch to fill. Leaving the loop keeps
// the consumer open. It panics when most is not positive.
func (c *Consumer) Batches(most int) iter.Seq[[]*ConsumeMessage] {
	if most <= 0 {
		panic(fmt.Sprintf("fila: batches of at most %d messages; give a positive number", most))
	}
	return func(yield func([]*ConsumeMessage) bool) {
		for {
			messages, err := c.next(context.Background(), most)
			if err != nil || !yield(messages) {
				return
			}
		}
	}
}

// Err is why the consumer ended: nil while it has not, and when it was closed.
func (c *Consumer) Err() error {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.err
}

// Close ends the stream and gives back what was not handed out, which takes a second at most.
// Harmless twice. It returns nil, always.
func (c *Consumer) Close() error {
	c.finish(nil)
	<-c.done
	return nil
}

func (c *Client) startConsumer(ctx context.Context, chosen consumeSettings) (*Consumer, error) {
	about := subject{queue: chosen.queue}
	timeoutMS, err := milliseconds("visibility timeout", chosen.visibilityTimeout, about)
	if err != nil {
		return nil, err
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.connection.isRefusing() {
		return nil, clientClosed(about)
	}
	consumer := &Consumer{
		client:     c,
		connection: c.connection,
		request: &filapb.ConsumeRequest{
			Queue:               chosen.queue,
			MaxInFlight:         chosen.maxInFlight,
			MaxBatch:            chosen.batchSize,
			VisibilityTimeoutMs: timeoutMS,
		},
		isWorkers: chosen.isWorkers,
		arrived:   make(chan struct{}, 1),
		ending:    make(chan struct{}),
		done:      make(chan struct{}),
	}
	if chosen.extendsLeases {
		consumer.keeper = c.leases
	}
	consumer.ctx, consumer.cancel = context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		consumer.finish(ended(ctx, "while consuming", about))
	})
	c.consumers[consumer] = struct{}{}
	go func() {
		consumer.run()
		stop()
		c.forget(consumer)
		close(consumer.done)
	}()
	return consumer, nil
}

func (c *Consumer) subject() subject { return subject{queue: c.request.GetQueue()} }

// finish ends the consumer, with its first reason.
func (c *Consumer) finish(err error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.finishLocked(err)
}

func (c *Consumer) finishLocked(err error) {
	if c.isEnding {
		return
	}
	c.isEnding, c.err = true, err
	close(c.ending)
	if c.isStreaming { // What was sent already arrives soon: the broker sends only its credit.
		time.AfterFunc(drainTime, c.cancel)
	} else {
		c.cancel()
	}
}

// run reads frames until the consumer ends, and then gives back what nobody took.
func (c *Consumer) run() {
	defer c.cancel()
	for {
		received, err := c.receive()
		if err == nil {
			c.attempts = 0
			c.put(received.GetMessages())
			continue
		}
		c.setStreaming(false)
		if err = c.reconnect(err); err == nil {
			continue
		}
		if !errors.Is(err, errEnding) {
			c.fail(err)
		}
		<-c.ending
		c.giveBack()
		return
	}
}

// put makes a frame available.
func (c *Consumer) put(messages []*filapb.Message) {
	if len(messages) == 0 {
		return
	}
	now := time.Now()
	came := &arrival{newFrame(messages, now, c.keeper), messages}
	if came.frame.keeper != nil {
		came.frame.keeper.keep(came.frame)
	}
	c.lock.Lock()
	c.frames = append(c.frames, came)
	c.waiting += len(messages)
	dropped := c.pruneLocked(now)
	c.signal()
	c.lock.Unlock()
	c.reportDropped(dropped)
}

// pruneLocked forgets frames whose leases ended, where there are more messages than the broker
// would have sent had they not: it counts them as nobody's, and sends others.
func (c *Consumer) pruneLocked(now time.Time) int {
	dropped := 0
	if c.waiting <= int(c.request.GetMaxInFlight()) {
		return dropped
	}
	kept := c.frames[:0:0]
	for _, each := range c.frames {
		if each.frame.isAlive(now) {
			kept = append(kept, each)
			continue
		}
		dropped += len(each.left)
		each.frame.lose()
	}
	c.frames, c.waiting = kept, c.waiting-dropped
	return dropped
}

// fail ends the consumer once all that was read is handed out.
func (c *Consumer) fail(err error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.failure = err
	if len(c.frames) == 0 {
		c.finishLocked(err)
		return
	}
	c.signal()
}

// setStreaming says whether frames may be about to arrive.
func (c *Consumer) setStreaming(isStreaming bool) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.isStreaming = isStreaming
}

func (c *Consumer) receive() (*filapb.ConsumeResponse, error) {
	if c.stream == nil {
		if err := c.open(); err != nil {
			return nil, err
		}
	}
	frame, err := c.stream.Recv()
	if err == nil || errors.Is(err, io.EOF) {
		return frame, err
	}
	return nil, c.connection.failure(c.ctx, c.key, err, c.stream.Trailer(), c.request)
}

func (c *Consumer) open() (err error) {
	c.openedAt = time.Now()
	if c.key, err = c.connection.key(c.ctx); err != nil {
		return err
	}
	// A first attempt says soon, and in the log, that nobody is there. Later ones wait for the
	// connection, which knows when it is worth trying again.
	ready := grpc.WaitForReady(c.attempts > 0)
	ctx := outgoing(c.ctx, c.key, traceOf(c.ctx))
	stream, err := c.connection.service.Consume(ctx, c.request, ready)
	if err != nil {
		return c.connection.failure(c.ctx, c.key, err, nil, c.request)
	}
	c.stream = stream
	c.setStreaming(true)
	if c.isLost {
		// The headers say that the broker has let the stream in; without any it has ended.
		if headers, err := stream.Header(); err == nil && headers != nil {
			c.isLost = false
			c.connection.logger.Info("consume stream is there again",
				"queue", c.request.GetQueue())
		}
	}
	return nil
}

// reconnect waits for the time to open another stream. It fails when the end of this one is final.
func (c *Consumer) reconnect(err error) error {
	c.stream = nil
	select {
	case <-c.ending:
		return errEnding
	default:
	}
	why := "the broker ended it"
	if !errors.Is(err, io.EOF) {
		err = named(err, c.subject())
		// A broker that stops cancels streams; nobody here did.
		if !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrCanceled) {
			return err
		}
		why = err.Error()
	}
	// A stream that lasted was a good one, even if its queue was empty all the time.
	if time.Since(c.openedAt) > c.connection.backoff.Maximum {
		c.attempts = 0
	}
	if !c.isLost {
		c.isLost = true
		c.connection.logger.Warn("consume stream was lost, reconnecting",
			"queue", c.request.GetQueue(), "error", why)
	}
	delay := c.connection.backoff.delay(c.attempts, rand.Float64())
	c.attempts++
	if c.connection.pause(c.ctx, delay) != nil {
		return errEnding
	}
	return nil
}

// giveBack returns what nobody took, and whose lease goes on.
func (c *Consumer) giveBack() {
	c.lock.Lock()
	unread := c.frames
	c.frames, c.waiting = nil, 0
	c.lock.Unlock()
	var items []item
	dropped, now := 0, time.Now()
	for _, each := range unread {
		for i, raw := range each.left {
			place := each.frame.size - len(each.left) + i
			if !each.frame.handOut(place, now, false) {
				dropped++
				continue
			}
			if released, err := releaseItem(raw); err == nil {
				items = append(items, released)
			}
		}
	}
	c.reportDropped(dropped)
	timeout := min(releaseTimeout, c.connection.timeout)
	ctx, cancel := context.WithTimeout(c.connection.alive, timeout)
	defer cancel()
	for _, answer := range sendMany(ctx, c.connection, nackBatch, items) {
		if answer.err != nil {
			c.connection.logger.Debug("message not given back, its lease will end",
				"queue", c.request.GetQueue(), "error", answer.err)
		}
	}
}
