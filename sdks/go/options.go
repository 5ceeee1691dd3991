// SPDX-License-Identifier: AGPL-3.0-only

// What a user may choose about a client and about single calls. Values are checked where they are
// used, so that the error names the call.

package fila

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"google.golang.org/grpc"
)

const (
	// DefaultTarget is where a broker listens unless it is told otherwise.
	DefaultTarget = "127.0.0.1:5555"
	// DefaultTimeout is the deadline of unary calls whose context has none.
	DefaultTimeout = 5 * time.Second

	// The broker keeps single payloads below 4 MiB; frames and pages hold many of them.
	defaultMessageBytesMax = 64 << 20
	// What a handler that takes 0.4 s works off before a default lease of 30 s ends. More would
	// also make a quiet tenant's message wait behind more that were delivered before it.
	defaultMaxInFlight = 64
	// Half of that: one frame is handled while the next one is on its way.
	defaultBatchSize = 32
	// What is promised waits for its answer for as long as a call of its own would.
	defaultCloseTimeout = 5 * time.Second
	// Enough to keep a broker busy for a second or two, and a small part of what a process has.
	defaultBufferedBytesMax = 32 << 20
	// Doubling stops long before this; the bound keeps the power small after hours of trying.
	doublingsMax = 30
)

// Backoff says how long to wait between attempts. The ceiling starts at Initial and doubles up to
// Maximum; each wait is a random part of it, so that the clients of a broker that restarts do not
// all come back in the same instant.
type Backoff struct {
	Initial time.Duration
	Maximum time.Duration
}

// delay is the wait before retry number attempt, counted from 0; chance is from 0 to 1.
func (b Backoff) delay(attempt int, chance float64) time.Duration {
	ceiling := float64(b.Initial) * math.Exp2(float64(min(attempt, doublingsMax)))
	return time.Duration(chance * min(ceiling, float64(b.Maximum)))
}

type settings struct {
	tls             *TLSOptions
	tlsConfig       *tls.Config
	dialOptions     []grpc.DialOption
	apiKey          string
	hasAPIKey       bool
	apiKeyFunc      func(context.Context) (string, error)
	onConnection    func(ConnectionEvent)
	timeout         time.Duration
	messageBytesMax int
	backoff         Backoff
	logger          *slog.Logger

	closeTimeout     time.Duration
	bufferedBytesMax int
}

func defaultSettings() settings {
	return settings{
		timeout:         DefaultTimeout,
		messageBytesMax: defaultMessageBytesMax,
		backoff:         Backoff{Initial: 100 * time.Millisecond, Maximum: 5 * time.Second},
		logger:          slog.Default(),

		closeTimeout:     defaultCloseTimeout,
		bufferedBytesMax: defaultBufferedBytesMax,
	}
}

// serverName is what to expect in the broker's certificate; empty for the target's host.
func (s settings) serverName() string {
	switch {
	case s.tls != nil:
		return s.tls.ServerName
	case s.tlsConfig != nil:
		return s.tlsConfig.ServerName
	}
	return ""
}

func (s settings) check() error {
	if s.timeout <= 0 {
		return fmt.Errorf("timeout must be positive, got %v", s.timeout)
	}
	if s.messageBytesMax <= 0 {
		return fmt.Errorf("max message bytes must be positive, got %d", s.messageBytesMax)
	}
	if s.closeTimeout < 0 {
		return fmt.Errorf("close timeout must not be negative, got %v", s.closeTimeout)
	}
	if s.bufferedBytesMax <= 0 {
		return fmt.Errorf("max buffered bytes must be positive, got %d", s.bufferedBytesMax)
	}
	if s.backoff.Initial <= 0 || s.backoff.Maximum < s.backoff.Initial {
		return fmt.Errorf("backoff needs 0 < Initial <= Maximum, got %v and %v",
			s.backoff.Initial, s.backoff.Maximum)
	}
	if s.tls != nil && s.tlsConfig != nil {
		return errors.New("tls options and a tls config exclude each other")
	}
	if s.hasAPIKey && s.apiKeyFunc != nil {
		return errors.New("an api key and a function for it exclude each other")
	}
	if s.hasAPIKey {
		return checkAPIKey(s.apiKey)
	}
	return nil
}

// ClientOption is a choice about a client, for NewClient.
type ClientOption func(*settings)

// WithTLS encrypts the connection.
func WithTLS(options TLSOptions) ClientOption {
	return func(s *settings) { s.tls = &options }
}

// WithTLSConfig encrypts the connection as the configuration says, for what TLSOptions cannot. It
// is copied; its own functions, such as GetClientCertificate, are asked for every connection.
func WithTLSConfig(config *tls.Config) ClientOption {
	return func(s *settings) { s.tlsConfig = config }
}

// WithDialOptions passes options on to gRPC, interceptors above all: grpc.WithChainUnaryInterceptor
// and grpc.WithChainStreamInterceptor. They come after this package's own, so theirs is the last
// word. Batches travel through the stream Pipeline, so it is the stream's interceptor that sees
// them. Transport credentials among them take the place of WithTLS, and WithOnConnection hears
// nothing then.
func WithDialOptions(options ...grpc.DialOption) ClientOption {
	return func(s *settings) { s.dialOptions = append(s.dialOptions, options...) }
}

// WithAPIKey sends the key with every call. It never appears in an error.
func WithAPIKey(key string) ClientOption {
	return func(s *settings) { s.apiKey, s.hasAPIKey = key, true }
}

// WithAPIKeyFunc has the function give the key, for each call and each stream that is opened; so it
// must be quick, and keep what is slow to get. What it fails with fails the call, as
// ErrUnauthenticated with that error in its chain. Many goroutines call it at once.
func WithAPIKeyFunc(key func(context.Context) (string, error)) ClientOption {
	return func(s *settings) { s.apiKeyFunc = key }
}

// WithOnConnection has a function called when the connection was made, was lost or cannot be made:
// once for each change, one after the other. A client that was not used has none.
func WithOnConnection(tell func(ConnectionEvent)) ClientOption {
	return func(s *settings) { s.onConnection = tell }
}

// WithTimeout sets the deadline of unary calls whose context has none.
func WithTimeout(timeout time.Duration) ClientOption {
	return func(s *settings) { s.timeout = timeout }
}

// WithMaxMessageBytes sets the size of the largest request and answer; 64 MiB unless set.
func WithMaxMessageBytes(limit int) ClientOption {
	return func(s *settings) { s.messageBytesMax = limit }
}

// WithBackoff sets the waits between attempts to reach the broker; 0.1 s to 5 s where it is zero.
func WithBackoff(backoff Backoff) ClientOption {
	return func(s *settings) {
		s.backoff.Initial = cmp.Or(backoff.Initial, s.backoff.Initial)
		s.backoff.Maximum = cmp.Or(backoff.Maximum, s.backoff.Maximum)
	}
}

// WithMaxBufferedBytes bounds what single calls have waiting to be sent; 32 MiB unless set. A call
// beyond it waits for room within its own deadline.
func WithMaxBufferedBytes(limit int) ClientOption {
	return func(s *settings) { s.bufferedBytesMax = limit }
}

// WithCloseTimeout sets how long Close lets calls that have begun be answered; 5 s unless set, and
// 0 does not wait.
func WithCloseTimeout(timeout time.Duration) ClientOption {
	return func(s *settings) { s.closeTimeout = timeout }
}

// WithLogger sets where lost connections and consume streams, and what goes wrong in workers, are
// reported; slog.Default() unless set.
func WithLogger(logger *slog.Logger) ClientOption {
	return func(s *settings) { s.logger = logger }
}

// EnqueueOption is a choice about one message, for Client.Enqueue.
type EnqueueOption func(*EnqueueMessage)

// WithFairnessKey names the group whose turn the message waits for.
func WithFairnessKey(key string) EnqueueOption {
	return func(m *EnqueueMessage) { m.FairnessKey = key }
}

// WithWeight sets the share of the message's fairness key, 1 to 1000.
func WithWeight(weight uint32) EnqueueOption {
	return func(m *EnqueueMessage) { m.Weight = weight }
}

// WithThrottleKeys names the limits that a delivery takes from, all or none.
func WithThrottleKeys(keys ...string) EnqueueOption {
	return func(m *EnqueueMessage) { m.ThrottleKeys = keys }
}

// WithThrottleCost sets the tokens taken from each throttle key; 1 unless set.
func WithThrottleCost(tokens uint32) EnqueueOption {
	return func(m *EnqueueMessage) { m.ThrottleCost = tokens }
}

// WithDelay keeps the message from being delivered before the time has passed.
func WithDelay(delay time.Duration) EnqueueOption {
	return func(m *EnqueueMessage) { m.Delay = delay }
}

// WithDeliverAt keeps the message from being delivered before that time.
func WithDeliverAt(at time.Time) EnqueueOption {
	return func(m *EnqueueMessage) { m.DeliverAt = at }
}

// WithTTL drops the message when it was not delivered within that time.
func WithTTL(ttl time.Duration) EnqueueOption {
	return func(m *EnqueueMessage) { m.TTL = ttl }
}

// WithIdempotencyKey makes a second enqueue with the same key store nothing and return the first
// id. The client then sends the message again while the broker is away, up to the deadline.
func WithIdempotencyKey(key string) EnqueueOption {
	return func(m *EnqueueMessage) { m.IdempotencyKey = key }
}

type consumeSettings struct {
	queue             string
	maxInFlight       uint32
	batchSize         uint32
	visibilityTimeout time.Duration
	extendsLeases     bool
	isWorkers         bool
}

// ConsumeOption is a choice about one consumer, for Client.Consume.
type ConsumeOption interface{ toConsume(*consumeSettings) }

type consumeOption func(*consumeSettings)

func (o consumeOption) toConsume(s *consumeSettings) { o(s) }

// WithMaxInFlight sets the most messages leased to the consumer at a time; 64 unless set.
func WithMaxInFlight(count uint32) ConsumeOption {
	return consumeOption(func(s *consumeSettings) { s.maxInFlight = count })
}

// WithBatchSize sets the most messages that arrive together; 32 unless set.
func WithBatchSize(count uint32) ConsumeOption {
	return consumeOption(func(s *consumeSettings) { s.batchSize = count })
}

// WithLeaseExtension says whether the leases of messages that wait in the consumer are extended;
// they are unless set. What was handed out is the application's to extend.
func WithLeaseExtension(isOn bool) ConsumeOption {
	return consumeOption(func(s *consumeSettings) { s.extendsLeases = isOn })
}

type receiveSettings struct {
	wait              time.Duration
	visibilityTimeout time.Duration
}

// ReceiveOption is a choice about one Client.Receive.
type ReceiveOption interface{ toReceive(*receiveSettings) }

type receiveOption func(*receiveSettings)

func (o receiveOption) toReceive(s *receiveSettings) { o(s) }

// WithWait waits that long for the first message. It comes on top of the client's timeout; a
// context's deadline has to leave room for it.
func WithWait(wait time.Duration) ReceiveOption {
	return receiveOption(func(s *receiveSettings) { s.wait = wait })
}

// LeaseOption is a choice about leases, for Client.Consume, Client.Receive and workers.
type LeaseOption interface {
	ConsumeOption
	ReceiveOption
	WorkerOption
}

type leaseOption time.Duration

func (o leaseOption) toConsume(s *consumeSettings) { s.visibilityTimeout = time.Duration(o) }
func (o leaseOption) toReceive(s *receiveSettings) { s.visibilityTimeout = time.Duration(o) }
func (o leaseOption) toWorker(s *workerSettings)   { s.visibilityTimeout = time.Duration(o) }

// WithVisibilityTimeout sets how long each lease lasts; the queue decides unless set.
func WithVisibilityTimeout(timeout time.Duration) LeaseOption { return leaseOption(timeout) }

type nackSettings struct {
	retryAfter    time.Duration
	hasRetryAfter bool
	throttleKey   string
	isDeadLetter  bool
}

// NackOption is a choice about one nack.
type NackOption func(*nackSettings)

// WithRetryAfter makes the nack backpressure, not failure: the message comes back after that time
// and no attempt is counted.
func WithRetryAfter(delay time.Duration) NackOption {
	return func(s *nackSettings) { s.retryAfter, s.hasRetryAfter = delay, true }
}

// WithThrottledKey lets nothing with this throttle key through, for anybody, until the time that
// WithRetryAfter beside it says.
func WithThrottledKey(key string) NackOption {
	return func(s *nackSettings) { s.throttleKey = key }
}

// WithDeadLetter says that trying again would not help: the message becomes a dead letter at once,
// whatever attempts are left. It excludes WithRetryAfter.
func WithDeadLetter() NackOption {
	return func(s *nackSettings) { s.isDeadLetter = true }
}
