// SPDX-License-Identifier: AGPL-3.0-only

// Package fila is the client of Fila, a message broker with fair scheduling and per-key throttling.
//
// A Client is safe for concurrent use, and meant to be shared: concurrent enqueues, acks and nacks
// travel in shared batches. A context's deadline is the call's; without one the client's timeout
// is. Everything fails with an *Error, whose kind errors.Is finds: errors.Is(err,
// fila.ErrQueueNotFound).
package fila

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

// Version is that of this package.
const Version = "0.1.0"

// Client is a connection to a broker. Create it with NewClient and close it in the end.
type Client struct {
	connection *connection

	enqueues   *coalescer[EnqueueResult]
	acks       *coalescer[struct{}]
	nacks      *coalescer[struct{}]
	extensions *coalescer[time.Time]

	promises *promises
	leases   *keeper

	lock      sync.Mutex
	consumers map[*Consumer]struct{}
	closing   sync.Once
}

// NewClient prepares a client for the broker at target, which is host:port; DefaultTarget is where
// a broker listens by default. It connects with its first call. Fails with ErrInvalidArgument when
// the target, an option or a TLS file cannot be used.
func NewClient(target string, options ...ClientOption) (*Client, error) {
	chosen := defaultSettings()
	for _, option := range options {
		option(&chosen)
	}
	opened, err := connect(target, chosen)
	if err != nil {
		return nil, newError(ErrInvalidArgument, codes.InvalidArgument, err.Error(), subject{}, err)
	}
	shared := newRoom(opened.bufferedBytesMax)
	return &Client{
		connection: opened,
		enqueues:   newCoalescer(enqueueBatch, opened, shared),
		acks:       newCoalescer(ackTogether, opened, shared),
		nacks:      newCoalescer(nackBatch, opened, shared),
		extensions: newCoalescer(extendBatch, opened, shared),
		promises:   newPromises(),
		leases:     newKeeper(opened),
		consumers:  map[*Consumer]struct{}{},
	}, nil
}

// Close refuses new calls, ends consumers, and lets enqueues, acks, nacks and extensions that have
// begun be answered for as long as WithCloseTimeout allows; what is left then fails with
// ErrClientClosed, and so does every call afterwards. Harmless twice. It returns nil, always.
func (c *Client) Close() error {
	c.closing.Do(func() {
		timeout := c.connection.closeTimeout
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		c.promises.refuse()
		c.lock.Lock()
		c.connection.refuse()
		open := make([]*Consumer, 0, len(c.consumers))
		for consumer := range c.consumers {
			open = append(open, consumer)
		}
		c.lock.Unlock()
		var ending sync.WaitGroup
		for _, consumer := range open {
			ending.Go(func() { _ = consumer.Close() })
		}
		_ = c.promises.wait(ctx) // What is not answered by now is cut off.
		ending.Wait()
		c.leases.stop()
		c.connection.close()
	})
	return nil
}

// Enqueue stores one message and returns its id.
//
// ErrUnavailable, ErrDeadlineExceeded, ErrCanceled and ErrStorageFailed leave open whether it was
// stored. With an idempotency key it is sent again while the broker is away, up to the deadline.
func (c *Client) Enqueue(
	ctx context.Context, queue string, headers map[string]string, payload []byte,
	options ...EnqueueOption,
) (string, error) {
	message := EnqueueMessage{Queue: queue, Headers: headers, Payload: payload}
	for _, option := range options {
		option(&message)
	}
	what, err := enqueueItem(&message, traceOf(ctx))
	if err != nil {
		return "", err
	}
	result, err := submit(ctx, c, c.enqueues, what)
	return result.MessageID, err
}

// EnqueueMany stores many messages in order, possibly in several queues; one result per message.
//
// They travel in as few requests as fit, one after the other. A request that fails as a whole fails
// its messages and all that follow; it is sent again while the broker is away if all its messages
// have idempotency keys. Without a deadline in the context each request has the client's timeout.
// An error beside the results means that nothing was sent: ErrClientClosed, or ErrInvalidArgument
// for a message that cannot be encoded.
func (c *Client) EnqueueMany(
	ctx context.Context, messages []EnqueueMessage,
) ([]EnqueueResult, error) {
	trace := traceOf(ctx)
	items := make([]item, len(messages))
	for i := range messages {
		what, err := enqueueItem(&messages[i], trace)
		if err == nil {
			err = what.encode()
		}
		if err != nil {
			failure := *failureOf(err)
			failure.Message = fmt.Sprintf("message %d: %s", i, failure.Message)
			return nil, &failure
		}
		items[i] = what
	}
	its := c.promises.begin()
	if its == nil {
		return nil, clientClosed(subject{})
	}
	defer c.promises.end(its)
	results := make([]EnqueueResult, len(items))
	for i, found := range sendMany(ctx, c.connection, enqueueBatch, items) {
		results[i] = found.value
		results[i].Err = found.err
	}
	return results, nil
}

// Consume leases messages of a queue as they become ready, until the consumer is closed or ctx
// ends. An unknown queue is reported by the first Next. When the connection is lost the consumer
// goes on with a new one.
func (c *Client) Consume(
	ctx context.Context, queue string, options ...ConsumeOption,
) (*Consumer, error) {
	chosen := consumeSettings{
		queue:         queue,
		maxInFlight:   defaultMaxInFlight,
		batchSize:     defaultBatchSize,
		extendsLeases: true,
	}
	for _, option := range options {
		option.toConsume(&chosen)
	}
	return c.startConsumer(ctx, chosen)
}

func (c *Client) forget(consumer *Consumer) {
	c.lock.Lock()
	defer c.lock.Unlock()
	delete(c.consumers, consumer)
}

// Receive leases up to count messages, and returns none when there are none within WithWait.
func (c *Client) Receive(
	ctx context.Context, queue string, count uint32, options ...ReceiveOption,
) ([]*ConsumeMessage, error) {
	about := subject{queue: queue}
	var chosen receiveSettings
	for _, option := range options {
		option.toReceive(&chosen)
	}
	waitMS, err := milliseconds("wait", chosen.wait, about)
	if err != nil {
		return nil, err
	}
	timeoutMS, err := milliseconds("visibility timeout", chosen.visibilityTimeout, about)
	if err != nil {
		return nil, err
	}
	request := &filapb.ReceiveRequest{
		Queue: queue, MaxMessages: count, WaitMs: waitMS, VisibilityTimeoutMs: timeoutMS,
	}
	// The broker may use all of the wait before it begins to answer.
	ctx, cancel := c.connection.withDeadline(ctx, chosen.wait)
	defer cancel()
	answer, err := once(ctx, c.connection, c.connection.service.Receive, request, about)
	if err != nil {
		return nil, err
	}
	messages := make([]*ConsumeMessage, len(answer.GetMessages()))
	together := &frame{size: len(messages)}
	for i, raw := range answer.GetMessages() {
		messages[i] = &ConsumeMessage{
			Message: readMessage(raw), client: c, frame: together, place: i,
		}
	}
	return messages, nil
}

// Ack reports that a leased message was processed; it is gone.
//
// Fails with ErrMessageNotFound when it is not leased, and with ErrLeaseExpired when the token is
// of an earlier delivery. With a token it is sent again while the broker is away, up to the
// deadline. With an empty one the message id alone decides, and it is never sent twice: after
// ErrUnavailable the message is gone, or comes back when its lease ends.
func (c *Client) Ack(ctx context.Context, queue, messageID, leaseToken string) error {
	return c.ack(ctx, subject{queue, messageID}, leaseToken, 0)
}

func (c *Client) ack(
	ctx context.Context, about subject, leaseToken string, frameSize int,
) error {
	_, err := submit(ctx, c, c.acks, ackItem(about, leaseToken, frameSize))
	return err
}

// Nack reports that processing failed, and why: the message is retried or dead-lettered. With
// WithRetryAfter it is backpressure, not failure; with WithDeadLetter nobody tries again. Fails as
// Ack does.
func (c *Client) Nack(
	ctx context.Context, queue, messageID, leaseToken, why string, options ...NackOption,
) error {
	what, err := nackItem(subject{queue, messageID}, leaseToken, why, options)
	if err != nil {
		return err
	}
	_, err = submit(ctx, c, c.nacks, what)
	return err
}

// Extend makes a lease last that long from now, and returns its new end; 0 takes the queue's
// visibility timeout. Fails as Ack does.
func (c *Client) Extend(
	ctx context.Context, queue, messageID, leaseToken string, lease time.Duration,
) (time.Time, error) {
	what, err := extendItem(subject{queue, messageID}, leaseToken, lease)
	if err != nil {
		return time.Time{}, err
	}
	return submit(ctx, c, c.extensions, what)
}

// AckMany acks many messages; nil or an error for each, in order. Those that came together, and are
// acked together, travel as one. An error beside them means that nothing was sent.
func (c *Client) AckMany(ctx context.Context, messages []*ConsumeMessage) ([]error, error) {
	return c.settleMany(ctx, ackMany, messages, func(m *ConsumeMessage) (item, error) {
		return ackItem(m.subject(), m.LeaseToken, m.frame.size), nil
	})
}

// NackMany nacks many messages for one reason; nil or an error for each, in order. An error beside
// them means that nothing was sent.
func (c *Client) NackMany(
	ctx context.Context, messages []*ConsumeMessage, why string,
) ([]error, error) {
	return c.nackAll(ctx, messages, why, nil)
}

func (c *Client) nackAll(
	ctx context.Context, messages []*ConsumeMessage, why string, options []NackOption,
) ([]error, error) {
	return c.settleMany(ctx, nackMany, messages, func(m *ConsumeMessage) (item, error) {
		return nackItem(m.subject(), m.LeaseToken, why, options)
	})
}

// ExtendResult is what became of one lease: when it ends, or the error that kept it from being
// extended.
type ExtendResult struct {
	LeaseExpiresAt time.Time
	// Err is nil or an *Error.
	Err error
}

// ExtendMany makes the leases of many messages last that long from now; one result per message, in
// order. 0 takes the queue's visibility timeout. An error beside them means that nothing was sent.
func (c *Client) ExtendMany(
	ctx context.Context, messages []*ConsumeMessage, lease time.Duration,
) ([]ExtendResult, error) {
	found, err := ofMany(ctx, c, extendMany, messages, func(m *ConsumeMessage) (item, error) {
		return extendItem(m.subject(), m.LeaseToken, lease)
	})
	results := make([]ExtendResult, len(found))
	for i, each := range found {
		results[i] = ExtendResult{each.value, each.err}
	}
	return results, err
}

func nackMany(ctx context.Context, c *connection, items []item) []outcome[struct{}] {
	return sendMany(ctx, c, nackBatch, items)
}

func extendMany(ctx context.Context, c *connection, items []item) []outcome[time.Time] {
	return sendMany(ctx, c, extendBatch, items)
}

func (c *Client) settleMany(
	ctx context.Context,
	send func(context.Context, *connection, []item) []outcome[struct{}],
	messages []*ConsumeMessage,
	describe func(*ConsumeMessage) (item, error),
) ([]error, error) {
	found, err := ofMany(ctx, c, send, messages, describe)
	if err != nil {
		return nil, err
	}
	errs := make([]error, len(found))
	for i, each := range found {
		errs[i] = messages[i].settledBy(each.err)
	}
	return errs, nil
}

// ofMany makes one call about many messages.
func ofMany[R any](
	ctx context.Context, c *Client,
	send func(context.Context, *connection, []item) []outcome[R],
	messages []*ConsumeMessage,
	describe func(*ConsumeMessage) (item, error),
) ([]outcome[R], error) {
	items := make([]item, len(messages))
	for i, message := range messages {
		what, err := describe(message)
		if err == nil {
			err = what.encode()
		}
		if err != nil {
			return nil, err
		}
		items[i] = what
	}
	its := c.promises.begin()
	if its == nil {
		return nil, clientClosed(subject{})
	}
	defer c.promises.end(its)
	return send(ctx, c.connection, items), nil
}

// submit makes one call of one item; again, while the broker is away, if that is safe: each time it
// joins another batch.
func submit[R any](
	ctx context.Context, c *Client, line *coalescer[R], what item,
) (value R, err error) {
	its := c.promises.begin()
	if its == nil {
		return value, clientClosed(what.about)
	}
	defer c.promises.end(its)
	ctx, cancel := c.connection.withDeadline(ctx, 0)
	defer cancel()
	err = c.connection.retrying(ctx, what.isRepeatable, func(isRepeat bool) error {
		what.wasSent = isRepeat
		value, err = line.submit(ctx, &what)
		return what.settled(err)
	})
	if err != nil {
		err = named(err, what.about)
	}
	return value, err
}
