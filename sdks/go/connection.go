// SPDX-License-Identifier: AGPL-3.0-only

// One gRPC connection: how it is set up, what every call carries, when one is sent again, and what
// its failures mean. Nothing here knows which calls exist or what they are for.

package fila

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
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

// schemes are those of gRPC's resolvers; other targets are host:port.
var schemes = []string{"dns:", "passthrough:", "unix:", "unix-abstract:"}

type connection struct {
	settings

	grpc    *grpc.ClientConn
	service filapb.FilaServiceClient
	admin   filapb.FilaAdminClient

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
	if err := checkTarget(target); err != nil {
		return nil, err
	}
	if err := chosen.check(); err != nil {
		return nil, err
	}
	transport := insecure.NewCredentials()
	if chosen.tls != nil {
		config, err := tlsConfig(*chosen.tls)
		if err != nil {
			return nil, err
		}
		transport = credentials.NewTLS(config)
	}
	channel, err := grpc.NewClient(target, dialOptions(chosen, transport)...)
	if err != nil {
		return nil, fmt.Errorf("target %q cannot be used: %w", target, err)
	}
	alive, end := context.WithCancel(context.Background())
	opened := &connection{
		settings: chosen,
		grpc:     channel,
		service:  filapb.NewFilaServiceClient(channel),
		admin:    filapb.NewFilaAdminClient(channel),
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
	}
}

func (c *connection) refuse() { c.refusing.Store(true) }

// isRefusing is true as soon as the client begins to close, isClosed once calls are cut off.
func (c *connection) isRefusing() bool { return c.refusing.Load() }

func (c *connection) isClosed() bool { return c.alive.Err() != nil }

// close ends calls and streams under way. The first says so before the second breaks them.
func (c *connection) close() {
	c.end()
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

// outgoing is a context whose call carries the API key and the trace, and nothing else: what the
// application has set for calls to others is none of the broker's business.
func (c *connection) outgoing(ctx context.Context, trace map[string]string) context.Context {
	md := make(metadata.MD, 1+len(trace))
	if c.hasAPIKey {
		md.Set("authorization", "Bearer "+c.apiKey)
	}
	for key, value := range trace {
		md.Set(key, value)
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
	var trailer metadata.MD
	answer, err := send(c.outgoing(ctx, trace), request, grpc.Trailer(&trailer))
	if err != nil {
		return none, c.failure(ctx, err, trailer, request)
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

// failure is what a failed call means. gRPC's own error is kept as its cause, unless the peer's
// text holds the API key.
func (c *connection) failure(
	ctx context.Context, err error, trailer metadata.MD, request proto.Message,
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
	if c.hasAPIKey && strings.Contains(text, c.apiKey) {
		text, cause = strings.ReplaceAll(text, c.apiKey, redacted), nil
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

func checkTarget(target string) error {
	for _, scheme := range schemes {
		if strings.HasPrefix(target, scheme) {
			return nil
		}
	}
	// Without a port gRPC would quietly take 443, and a URL's scheme for a name to resolve.
	at := strings.LastIndex(target, ":")
	host, port := target[:max(at, 0)], target[at+1:]
	number, err := strconv.ParseUint(port, 10, 16)
	isHost := host != "" && !strings.Contains(host, "/") &&
		(!strings.Contains(host, ":") || strings.HasPrefix(host, "["))
	if !isHost || err != nil || number == 0 {
		return fmt.Errorf("target %q is not host:port, for example %q", target, DefaultTarget)
	}
	return nil
}

func checkAPIKey(chosen settings) error {
	isBad := func(r rune) bool { return r < '!' || r > '~' }
	// gRPC refuses other characters too, but with a text that repeats the key.
	if chosen.hasAPIKey && (chosen.apiKey == "" || strings.ContainsFunc(chosen.apiKey, isBad)) {
		return errors.New("api key must be printable ASCII without spaces, and not empty")
	}
	return nil
}

func tlsConfig(options TLSOptions) (*tls.Config, error) {
	config := &tls.Config{ServerName: options.ServerName, MinVersion: tls.VersionTLS12}
	if options.CAFile != "" {
		pem, err := readFile("ca file", options.CAFile)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls ca file %q holds no certificate in PEM", options.CAFile)
		}
	}
	if (options.CertFile == "") != (options.KeyFile == "") {
		return nil, errors.New("tls cert file and key file go together; give both or neither")
	}
	if options.CertFile == "" {
		return config, nil
	}
	cert, err := readFile("cert file", options.CertFile)
	if err != nil {
		return nil, err
	}
	key, err := readFile("key file", options.KeyFile)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("tls cert file %q and key file %q cannot be used: %w",
			options.CertFile, options.KeyFile, err)
	}
	config.Certificates = []tls.Certificate{pair}
	return config, nil
}

func readFile(option, path string) ([]byte, error) {
	content, err := os.ReadFile(path)
	var failed *fs.PathError
	if errors.As(err, &failed) {
		return nil, fmt.Errorf("cannot read tls %s %q: %w", option, path, failed.Err)
	}
	return content, err
}
