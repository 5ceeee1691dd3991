// SPDX-License-Identifier: AGPL-3.0-only

// One gRPC connection: how it is set up, what every call carries, when one is sent again, and what
// its failures mean. Nothing here knows which calls exist or what they are for.

package fila

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

const (
	// Below the 60 s after which NAT tables and load balancers forget idle connections, and above
	// the interval from which the broker takes pings for a flood.
	keepaliveTime = 20 * time.Second
	// With the above, a silent peer is noticed before a default lease of 30 s ends.
	keepaliveTimeout = 5 * time.Second
	// The time limit of one attempt to connect, TLS handshake included.
	connectTimeout = 5 * time.Second

	reasonTrailer = "fila-reason"
	redacted      = "[redacted]"

	beforeSent   = "before the request was sent"
	beforeAnswer = "before the answer came; the outcome is unknown"
)

type connection struct {
	settings

	grpc    *grpc.ClientConn
	service filapb.FilaServiceClient
	admin   filapb.FilaAdminClient
	health  grpc_health_v1.HealthClient
	watch   *watch

	// hasNoGrants is set once the broker has said that it knows no SettleGrants.
	hasNoGrants atomic.Bool
	// hasNoPipelines is the same for Pipeline.
	hasNoPipelines atomic.Bool
	enqueues       *pipeline
	settlements    *pipeline

	// refusing is set when the client begins to close: there are no new calls.
	refusing atomic.Bool
	// alive ends when the client is closed, and with it whatever waits.
	alive context.Context
	end   context.CancelFunc
}

// connect fails with plain errors that name the option at fault. It sends nothing yet.
func connect(target string, chosen settings) (*connection, error) {
	if err := chosen.check(); err != nil {
		return nil, err
	}
	watching := &watch{logger: chosen.logger, tell: chosen.onConnection}
	secured, err := newTransport(chosen, watching)
	if err != nil {
		return nil, err
	}
	where, options, err := located(target, chosen.serverName())
	if err != nil {
		return nil, err
	}
	options = append(options, dialOptions(chosen, secured)...)
	channel, err := grpc.NewClient(where, append(options, chosen.dialOptions...)...)
	if err != nil {
		return nil, fmt.Errorf("target %q cannot be used: %w", target, err)
	}
	alive, end := context.WithCancel(context.Background())
	opened := &connection{
		settings: chosen,
		grpc:     channel,
		service:  filapb.NewFilaServiceClient(channel),
		admin:    filapb.NewFilaAdminClient(channel),
		health:   grpc_health_v1.NewHealthClient(channel),
		watch:    watching,
		alive:    alive,
		end:      end,
	}
	opened.enqueues, opened.settlements = newPipeline(opened), newPipeline(opened)
	return opened, nil
}

func dialOptions(chosen settings, transport credentials.TransportCredentials) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithUserAgent("fila-go/" + Version),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(chosen.messageBytesMax),
			grpc.MaxCallSendMsgSize(chosen.messageBytesMax),
		),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: keepaliveTime, Timeout: keepaliveTimeout, PermitWithoutStream: true,
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay:  chosen.backoff.Initial,
				Multiplier: 2,
				Jitter:     0.2,
				MaxDelay:   chosen.backoff.Maximum,
			},
			MinConnectTimeout: connectTimeout,
		}),
		// What is sent again is decided in this package, which knows what may be.
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultServiceConfig(chosenPolicy),
	}
}

func (c *connection) refuse() { c.refusing.Store(true) }

// isRefusing is true as soon as the client begins to close, isClosed once calls are cut off.
func (c *connection) isRefusing() bool { return c.refusing.Load() }

func (c *connection) isClosed() bool { return c.alive.Err() != nil }

// close ends calls and streams under way. The first says so before the second breaks them.
func (c *connection) close() {
	c.end()
	c.watch.stop()
	ctx, cancel := context.WithTimeout(context.Background(), pipelineDrainTime)
	defer cancel()
	var draining sync.WaitGroup
	draining.Go(func() { c.enqueues.close(ctx) })
	draining.Go(func() { c.settlements.close(ctx) })
	draining.Wait()
	_ = c.grpc.Close() // It fails only when it is closed already.
}

// withDeadline gives the context the client's timeout, unless it has a deadline of its own.
func (c *connection) withDeadline(
	ctx context.Context, extra time.Duration,
) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.timeout+extra)
}

// key is the API key to use now; empty where there is none.
func (c *connection) key(ctx context.Context) (string, error) {
	if c.apiKeyFunc == nil {
		return c.apiKey, nil
	}
	key, err := c.askKey(ctx)
	if err != nil {
		text := "the function for the api key failed: " + err.Error()
		return "", newError(ErrUnauthenticated, codes.Unauthenticated, text, subject{}, err)
	}
	if err := checkAPIKey(key); err != nil {
		return "", invalid(err.Error(), subject{})
	}
	return key, nil
}

// askKey asks the application. It may do so in a goroutine of this package, where nobody else could
// recover from a panic.
func (c *connection) askKey(ctx context.Context) (key string, err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("panicked: %v", panicked)
		}
	}()
	return c.apiKeyFunc(ctx)
}

// outgoing is a context whose call carries the API key and the trace, and nothing else: what the
// application has set for calls to others is none of the broker's business.
func outgoing(ctx context.Context, key string, trace map[string]string) context.Context {
	md := make(metadata.MD, 1+len(trace))
	if key != "" {
		md.Set("authorization", "Bearer "+key)
	}
	for name, value := range trace {
		md.Set(name, value)
	}
	return metadata.NewOutgoingContext(ctx, md)
}

// unary is a method of a generated client.
type unary[Q, A proto.Message] = func(context.Context, Q, ...grpc.CallOption) (A, error)

// call sends one request within the context's deadline and waits for the answer.
func call[Q, A proto.Message](
	ctx context.Context, c *connection, send unary[Q, A], request Q, trace map[string]string,
) (A, error) {
	var none A
	if c.isClosed() {
		return none, clientClosed(subject{})
	}
	if err := ctx.Err(); err != nil {
		return none, ended(ctx, beforeSent, subject{})
	}
	key, err := c.key(ctx)
	if err != nil {
		return none, err
	}
	var trailer metadata.MD
	answer, err := send(outgoing(ctx, key, trace), request, grpc.Trailer(&trailer))
	if err != nil {
		return none, c.failure(ctx, key, err, trailer, request)
	}
	return answer, nil
}

// once sends a request that must not be repeated.
func once[Q, A proto.Message](
	ctx context.Context, c *connection, send unary[Q, A], request Q, about subject,
) (A, error) {
	if c.isRefusing() {
		var none A
		return none, clientClosed(about)
	}
	ctx, cancel := c.withDeadline(ctx, 0)
	defer cancel()
	answer, err := call(ctx, c, send, request, traceOf(ctx))
	if err != nil {
		err = named(err, about)
	}
	return answer, err
}

// repeatedly sends a request that does no harm when it is done twice, until the broker is there or
// the deadline passes.
func repeatedly[Q, A proto.Message](
	ctx context.Context, c *connection, send unary[Q, A], request Q, about subject,
) (answer A, err error) {
	ctx, cancel := c.withDeadline(ctx, 0)
	defer cancel()
	err = c.retrying(ctx, true, func(bool) error {
		answer, err = once(ctx, c, send, request, about)
		return err
	})
	return answer, err
}

// failure is what a call that carried this key failed with. gRPC's own error is kept as its cause,
// unless the peer's text holds the key.
func (c *connection) failure(
	ctx context.Context, key string, err error, trailer metadata.MD, request proto.Message,
) error {
	if c.isClosed() {
		return clientClosed(subject{})
	}
	state := status.Convert(err)
	if state.Code() == codes.Internal {
		if name := badText(request.ProtoReflect()); name != "" {
			return unencodable(name, subject{})
		}
	}
	isCut := state.Code() == codes.DeadlineExceeded || state.Code() == codes.Canceled
	if isCut && ctx.Err() != nil {
		return ended(ctx, beforeAnswer, subject{})
	}
	text, cause := state.Message(), err
	if key != "" && strings.Contains(text, key) {
		text, cause = strings.ReplaceAll(text, key, redacted), nil
	}
	reason := ""
	if found := trailer.Get(reasonTrailer); len(found) > 0 {
		reason = found[0]
	}
	return statusError(state.Code(), reason, text, subject{}, cause)
}

// ended is the error of a call whose context is over, and says where in its life the call was.
func ended(ctx context.Context, when string, about subject) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		text := "the deadline passed " + when
		return newError(ErrDeadlineExceeded, codes.DeadlineExceeded, text, about, ctx.Err())
	}
	return newError(ErrCanceled, codes.Canceled, "canceled "+when, about, ctx.Err())
}

// retrying calls send; again, while the broker is away, if that is safe and the deadline allows it.
func (c *connection) retrying(
	ctx context.Context, isRepeatable bool, send func(isRepeat bool) error,
) error {
	for attempt := 0; ; attempt++ {
		err := send(attempt > 0)
		if err == nil || !isRepeatable || !errors.Is(err, ErrUnavailable) {
			return err
		}
		delay := c.backoff.delay(attempt, rand.Float64())
		if deadline, has := ctx.Deadline(); has && time.Until(deadline) <= delay {
			return err
		}
		if err := c.pause(ctx, delay); err != nil {
			return err
		}
	}
}

// pause waits, and fails when the context or the client ends first.
func (c *connection) pause(ctx context.Context, delay time.Duration) error {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ended(ctx, beforeSent, subject{})
	case <-c.alive.Done():
		return clientClosed(subject{})
	}
}

func checkAPIKey(key string) error {
	isBad := func(r rune) bool { return r < '!' || r > '~' }
	// gRPC refuses other characters too, but with a text that repeats the key.
	if key == "" || strings.ContainsFunc(key, isBad) {
		return errors.New("api key must be printable ASCII without spaces, and not empty")
	}
	return nil
}
