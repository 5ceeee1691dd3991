// SPDX-License-Identifier: AGPL-3.0-only

// A stream of leased messages that outlives its connection.
//
//	open --frame--> messages --> application          Close, or its context, ends it
//	 ^                |
//	 '-- wait <-- UNAVAILABLE, or the broker ended the stream      any other error is final
//
// One goroutine owns the stream. It reads a frame only when the application has taken all messages
// of the one before, so gRPC's flow control and the broker's credit see how fast it really is. What
// was sent but never handed out goes back at the end: otherwise every restart of a worker would
// hide those messages until their leases end, and count an attempt that nobody made.

package fila

import (
	"context"
	"errors"
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
// use. It has to be closed, or its context cancelled, to give back what nobody took.
type Consumer struct {
	client     *Client
	connection *connection
	request    *filapb.ConsumeRequest

	// ctx is that of the streams. It has no deadline: a stream lasts as long as the consumer.
	ctx    context.Context
	cancel context.CancelFunc

	// messages has no buffer: what is in the reader's hands can still be given back.
	messages chan *ConsumeMessage
	// ending is closed when nothing more is handed out, done when everything was given back.
	ending chan struct{}
	done   chan struct{}

	lock sync.Mutex
	// err is why it ended; nil when it was closed.
	err error
	// isReading is true while the reader waits for the broker and has to be interrupted.
	isReading bool
	isEnding  bool

	// Only the reader knows these.
	stream   grpc.ServerStreamingClient[filapb.ConsumeResponse]
	openedAt time.Time
	attempts int
}

// Next waits for the next message. It returns io.EOF after Close, the context's error when ctx
// ends first (no message is lost then), and otherwise what ended the consumer: ErrQueueNotFound,
// ErrPermissionDenied or whatever else trying again would not cure. That error stays.
func (c *Consumer) Next(ctx context.Context) (*ConsumeMessage, error) {
	select {
	case message := <-c.messages:
		return message, nil
	case <-c.ending:
		if err := c.Err(); err != nil {
			return nil, err
		}
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ended(ctx, "while waiting for a message", c.subject())
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

func (c *Client) startConsumer(ctx context.Context, request *filapb.ConsumeRequest) *Consumer {
	consumer := &Consumer{
		client:     c,
		connection: c.connection,
		request:    request,
		messages:   make(chan *ConsumeMessage),
		ending:     make(chan struct{}),
		done:       make(chan struct{}),
	}
	consumer.ctx, consumer.cancel = context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		consumer.finish(ended(ctx, "while consuming", consumer.subject()))
	})
	go func() {
		consumer.run()
		stop()
		c.forget(consumer)
		close(consumer.done)
	}()
	return consumer
}

func (c *Consumer) subject() subject { return subject{queue: c.request.GetQueue()} }

// finish ends the consumer, with its first reason.
func (c *Consumer) finish(err error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.isEnding {
		return
	}
	c.isEnding, c.err = true, err
	close(c.ending)
	// A reader that waits for a frame has taken all before it. One that hands out messages has yet
	// to take what arrived meanwhile, so its stream lives on until then.
	if c.isReading {
		c.cancel()
	}
}

// run reads frames and hands them out until the consumer ends.
func (c *Consumer) run() {
	defer c.cancel()
	for {
		frame, err := c.read()
		if err != nil {
			if !errors.Is(err, errEnding) {
				c.finish(err)
			}
			return
		}
		if left := c.handOut(frame); left != nil {
			c.giveBack(append(left, c.drain()...))
			return
		}
	}
}

// handOut returns what nobody took before the end; nil when all was taken.
func (c *Consumer) handOut(frame []*filapb.Message) []*filapb.Message {
	for i, raw := range frame {
		// Both may be possible below, and then the end should win.
		select {
		case <-c.ending:
			return frame[i:]
		default:
		}
		select {
		case <-c.ending:
			return frame[i:]
		case c.messages <- c.client.readDelivered(raw, len(frame)):
		}
	}
	return nil
}

// read is the next frame, from a new stream if the old one was lost.
func (c *Consumer) read() ([]*filapb.Message, error) {
	if !c.setReading(true) {
		return nil, errEnding
	}
	defer c.setReading(false)
	for {
		frame, err := c.receive()
		if err == nil {
			c.attempts = 0
			return frame.GetMessages(), nil
		}
		if err := c.reconnect(err); err != nil {
			return nil, err
		}
	}
}

// setReading is false when it is too late to begin.
func (c *Consumer) setReading(isReading bool) bool {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.isReading = isReading && !c.isEnding
	return c.isReading
}

func (c *Consumer) receive() (*filapb.ConsumeResponse, error) {
	if c.stream == nil {
		c.openedAt = time.Now()
		// A first attempt says soon, and in the log, that nobody is there. Later ones wait for the
		// connection, which knows when it is worth trying again.
		ready := grpc.WaitForReady(c.attempts > 0)
		ctx := c.connection.outgoing(c.ctx, traceOf(c.ctx))
		stream, err := c.connection.service.Consume(ctx, c.request, ready)
		if err != nil {
			return nil, c.connection.failure(c.ctx, err, nil, c.request)
		}
		c.stream = stream
	}
	frame, err := c.stream.Recv()
	if err == nil || errors.Is(err, io.EOF) {
		return frame, err
	}
	return nil, c.connection.failure(c.ctx, err, c.stream.Trailer(), c.request)
}

// reconnect waits for the time to open another stream. It fails when the end of this one is final.
func (c *Consumer) reconnect(err error) error {
	c.stream = nil
	if c.ctx.Err() != nil {
		return errEnding
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
	if c.attempts == 0 {
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

// drain takes what was sent already. The broker sends no more than its credit, so it ends soon.
func (c *Consumer) drain() []*filapb.Message {
	timer := time.AfterFunc(drainTime, c.cancel)
	defer timer.Stop()
	var arrived []*filapb.Message
	for {
		frame, err := c.stream.Recv()
		if err != nil { // Cancelled by the timer, or lost.
			return arrived
		}
		arrived = append(arrived, frame.GetMessages()...)
	}
}

func (c *Consumer) giveBack(unread []*filapb.Message) {
	items := make([]item, 0, len(unread))
	for _, raw := range unread {
		if released, err := releaseItem(raw); err == nil {
			items = append(items, released)
		}
	}
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
