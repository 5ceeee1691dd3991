// SPDX-License-Identifier: AGPL-3.0-only

// A broker that does what a test tells it: real gRPC over loopback, answers from a script. It
// records what arrived, so that tests look at the wire and not at the client's inside.

package fila_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	fila "github.com/faiscadev/fila/sdks/go"
	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

// patience is how long a test waits for what must happen; a loaded machine needs some.
const patience = 20 * time.Second

// seen is one call as it arrived.
type seen struct {
	method   string
	request  proto.Message
	metadata metadata.MD
	// isPiped says that it came through a pipeline.
	isPiped bool
	// left is the time to the deadline; 0 without one.
	left time.Duration
}

type (
	script       func(ctx context.Context, request proto.Message) (proto.Message, error)
	streamScript func(stream grpc.ServerStream, request *filapb.ConsumeRequest) error
	pipeScript   func(stream grpc.ServerStream) error
)

// broker answers every call with success unless a script says otherwise.
type broker struct {
	t        *testing.T
	target   string
	listener net.Listener
	server   *grpc.Server

	lock    sync.Mutex
	calls   []seen
	scripts map[string]script
	consume streamScript
	pipe    pipeScript
	stored  int
}

func startBroker(t *testing.T, options ...grpc.ServerOption) *broker {
	t.Helper()
	return startBrokerAt(t, "127.0.0.1:0", frames(), options...)
}

// startBrokerAt has its script from the start, because a consumer may be waiting for it.
func startBrokerAt(
	t *testing.T, address string, consume streamScript, options ...grpc.ServerOption,
) *broker {
	t.Helper()
	var listener net.Listener
	eventually(t, address+" is free", func() (isListening bool) {
		var err error
		listener, err = net.Listen("tcp", address)
		return err == nil
	})
	b := &broker{
		t: t, target: listener.Addr().String(), listener: listener, scripts: map[string]script{},
	}
	b.scripts["EnqueueBatch"] = b.store
	b.scripts["AckBatch"] = settleAll
	b.scripts["NackBatch"] = settleAll
	b.consume, b.pipe = consume, b.dispatch
	options = append(options,
		grpc.UnaryInterceptor(b.answer), grpc.StreamInterceptor(b.stream),
		grpc.MaxRecvMsgSize(64<<20),
	)
	b.server = grpc.NewServer(options...)
	filapb.RegisterFilaServiceServer(b.server, filapb.UnimplementedFilaServiceServer{})
	filapb.RegisterFilaAdminServer(b.server, filapb.UnimplementedFilaAdminServer{})
	grpc_health_v1.RegisterHealthServer(b.server, grpc_health_v1.UnimplementedHealthServer{})
	go func() { _ = b.server.Serve(listener) }()
	t.Cleanup(b.stop)
	return b
}

var (
	firstPort  = rand.Int32N(12_000)
	portsGiven atomic.Int32
)

// freeAddress is one where nobody listens, for brokers that come later or again. No other test is
// given it, and no connection: of the ephemeral range, whoever listens on port 0 could take it
// meanwhile, and a client that tries to connect there may find itself.
func freeAddress(t *testing.T) string {
	t.Helper()
	for {
		port := 20_000 + (firstPort+portsGiven.Add(1))%12_000
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			check(t, listener.Close())
			return listener.Addr().String()
		}
	}
}

// stop frees the address even if the server has not come to serve it yet.
func (b *broker) stop() {
	b.server.Stop()
	_ = b.listener.Close()
}

func (b *broker) script(method string, answer script) {
	b.lock.Lock()
	defer b.lock.Unlock()
	b.scripts[method] = answer
}

func (b *broker) scriptConsume(answer streamScript) {
	b.lock.Lock()
	defer b.lock.Unlock()
	b.consume = answer
}

// scriptPipelines is for what a script per call cannot say.
func (b *broker) scriptPipelines(answer pipeScript) {
	b.lock.Lock()
	defer b.lock.Unlock()
	b.pipe = answer
}

func (b *broker) seenOf(method string) []seen {
	b.lock.Lock()
	defer b.lock.Unlock()
	var found []seen
	for _, call := range b.calls {
		if call.method == method {
			found = append(found, call)
		}
	}
	return found
}

func (b *broker) waitForCalls(method string, count int) []seen {
	b.t.Helper()
	eventually(b.t, fmt.Sprintf("%d calls of %s", count, method), func() bool {
		return len(b.seenOf(method)) >= count
	})
	return b.seenOf(method)
}

func (b *broker) record(ctx context.Context, path string, request proto.Message) string {
	method := path[strings.LastIndex(path, "/")+1:]
	call := seen{method: method, request: request}
	call.isPiped = !strings.Contains(path, "/")
	call.metadata, _ = metadata.FromIncomingContext(ctx)
	if deadline, has := ctx.Deadline(); has {
		call.left = time.Until(deadline)
	}
	b.lock.Lock()
	defer b.lock.Unlock()
	b.calls = append(b.calls, call)
	return method
}

func (b *broker) answer(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler,
) (any, error) {
	method := b.record(ctx, info.FullMethod, request.(proto.Message))
	b.lock.Lock()
	answer := b.scripts[method]
	b.lock.Unlock()
	if answer == nil {
		return next(ctx, request)
	}
	return answer(ctx, request.(proto.Message))
}

func (b *broker) stream(
	_ any, stream grpc.ServerStream, info *grpc.StreamServerInfo, _ grpc.StreamHandler,
) error {
	if info.FullMethod == filapb.FilaService_Pipeline_FullMethodName {
		b.record(stream.Context(), info.FullMethod, nil)
		b.lock.Lock()
		answer := b.pipe
		b.lock.Unlock()
		return answer(stream)
	}
	request := &filapb.ConsumeRequest{}
	if err := stream.RecvMsg(request); err != nil {
		return err
	}
	b.record(stream.Context(), info.FullMethod, request)
	b.lock.Lock()
	answer := b.consume
	b.lock.Unlock()
	return answer(stream, request)
}

// dispatch answers what comes through a pipeline as it would answer the calls: they overlap, and
// answers leave in order. What a script fails with ends the stream.
func (b *broker) dispatch(stream grpc.ServerStream) error {
	type result struct {
		answer *filapb.PipelineResponse
		err    error
	}
	results := make(chan chan result, 1000)
	go func() {
		defer close(results)
		for {
			request := &filapb.PipelineRequest{}
			if stream.RecvMsg(request) != nil {
				return
			}
			mine := make(chan result, 1)
			results <- mine
			method, call := called(request)
			b.record(stream.Context(), method, call)
			b.lock.Lock()
			answer := b.scripts[method]
			b.lock.Unlock()
			go func() {
				if answer == nil {
					mine <- result{err: status.Error(codes.Internal, "no script for "+method)}
					return
				}
				answered, err := answer(stream.Context(), call)
				mine <- result{piped(answered), err}
			}()
		}
	}()
	for next := range results {
		found := <-next
		if found.err != nil {
			return found.err
		}
		if err := stream.SendMsg(found.answer); err != nil {
			return err
		}
	}
	return nil
}

// called is the call that a request of a pipeline stands for.
func called(request *filapb.PipelineRequest) (string, proto.Message) {
	switch call := request.GetCall().(type) {
	case *filapb.PipelineRequest_Enqueue:
		return "EnqueueBatch", call.Enqueue
	case *filapb.PipelineRequest_Ack:
		return "AckBatch", call.Ack
	case *filapb.PipelineRequest_Nack:
		return "NackBatch", call.Nack
	case *filapb.PipelineRequest_Extend:
		return "ExtendLease", call.Extend
	case *filapb.PipelineRequest_Settle:
		return "SettleGrants", call.Settle
	}
	return "nothing", nil
}

func piped(answer proto.Message) *filapb.PipelineResponse {
	switch answer := answer.(type) {
	case *filapb.EnqueueBatchResponse:
		return &filapb.PipelineResponse{Answer: &filapb.PipelineResponse_Enqueue{Enqueue: answer}}
	case *filapb.AckBatchResponse:
		return &filapb.PipelineResponse{Answer: &filapb.PipelineResponse_Ack{Ack: answer}}
	case *filapb.NackBatchResponse:
		return &filapb.PipelineResponse{Answer: &filapb.PipelineResponse_Nack{Nack: answer}}
	case *filapb.ExtendLeaseResponse:
		return &filapb.PipelineResponse{Answer: &filapb.PipelineResponse_Extend{Extend: answer}}
	case *filapb.SettleGrantsResponse:
		return &filapb.PipelineResponse{Answer: &filapb.PipelineResponse_Settle{Settle: answer}}
	case *filapb.ItemError:
		return &filapb.PipelineResponse{Answer: &filapb.PipelineResponse_Error{Error: answer}}
	}
	return &filapb.PipelineResponse{}
}

// store gives a message the id payload#number, so that tests can tell whose it is.
func (b *broker) store(_ context.Context, request proto.Message) (proto.Message, error) {
	b.lock.Lock()
	defer b.lock.Unlock()
	answer := &filapb.EnqueueBatchResponse{}
	for _, message := range request.(*filapb.EnqueueBatchRequest).GetMessages() {
		b.stored++
		id := fmt.Sprintf("%s#%d", message.GetPayload(), b.stored)
		answer.Results = append(answer.Results, &filapb.EnqueueResult{MessageId: id})
	}
	return answer, nil
}

func settleAll(_ context.Context, request proto.Message) (proto.Message, error) {
	if acks, isAck := request.(*filapb.AckBatchRequest); isAck {
		return &filapb.AckBatchResponse{Results: itemResults(len(acks.GetAcks()))}, nil
	}
	nacks := request.(*filapb.NackBatchRequest).GetNacks()
	return &filapb.NackBatchResponse{Results: itemResults(len(nacks))}, nil
}

func itemResults(count int) []*filapb.ItemResult {
	results := make([]*filapb.ItemResult, count)
	for i := range results {
		results[i] = &filapb.ItemResult{}
	}
	return results
}

// idle keeps a stream open until its client ends it.
func idle(stream grpc.ServerStream) error {
	<-stream.Context().Done()
	return stream.Context().Err()
}

func replyWith(answer proto.Message) script {
	return func(context.Context, proto.Message) (proto.Message, error) { return answer, nil }
}

func refuse(code codes.Code, text, reason string) script {
	return func(ctx context.Context, _ proto.Message) (proto.Message, error) {
		if reason != "" {
			_ = grpc.SetTrailer(ctx, metadata.Pairs("fila-reason", reason))
		}
		return nil, status.Error(code, text)
	}
}

// unknown is a broker of before there were pipelines.
func unknown(grpc.ServerStream) error { return status.Error(codes.Unimplemented, "no such call") }

func refuseStream(code codes.Code, text, reason string) streamScript {
	return func(stream grpc.ServerStream, _ *filapb.ConsumeRequest) error {
		if reason != "" {
			stream.SetTrailer(metadata.Pairs("fila-reason", reason))
		}
		return status.Error(code, text)
	}
}

// held answers like another script, once its gate is closed.
func held(gate <-chan struct{}, then script) script {
	return func(ctx context.Context, request proto.Message) (proto.Message, error) {
		select {
		case <-gate:
			return then(ctx, request)
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
}

// frame is messages as the broker would send them.
func frame(ids ...string) *filapb.ConsumeResponse {
	sent := &filapb.ConsumeResponse{}
	for _, id := range ids {
		sent.Messages = append(sent.Messages, &filapb.Message{
			Id:      id,
			Payload: []byte(id),
			Metadata: &filapb.MessageMetadata{
				QueueId: "orders", FairnessKey: "default", LeaseToken: "token-of-" + id,
			},
		})
	}
	return sent
}

func frames(sent ...*filapb.ConsumeResponse) streamScript {
	return func(stream grpc.ServerStream, _ *filapb.ConsumeRequest) error {
		for _, each := range sent {
			if err := stream.SendMsg(each); err != nil {
				return err
			}
		}
		return idle(stream)
	}
}

// scriptArrivals sends these frames, and gives what waits until they are with a client: what is
// answered after they were sent arrives after them, on the same connection.
func (b *broker) scriptArrivals(found ...*filapb.ConsumeResponse) func(*fila.Client) {
	sent := make(chan struct{})
	b.scriptConsume(func(stream grpc.ServerStream, _ *filapb.ConsumeRequest) error {
		for _, each := range found {
			if err := stream.SendMsg(each); err != nil {
				return err
			}
		}
		close(sent)
		return idle(stream)
	})
	return func(client *fila.Client) {
		b.t.Helper()
		<-sent
		check(b.t, client.Ack(b.t.Context(), "orders", "unknown", ""))
	}
}

func newClient(t *testing.T, target string, options ...fila.ClientOption) *fila.Client {
	t.Helper()
	quiet := fila.WithLogger(slog.New(slog.DiscardHandler))
	options = append([]fila.ClientOption{fila.WithTimeout(patience), quiet}, options...)
	client, err := fila.NewClient(target, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// expiring is a context whose deadline passes when the test says so.
type expiring struct {
	context.Context
	expired chan struct{}
}

func newExpiring(t *testing.T) *expiring {
	t.Helper()
	return &expiring{Context: t.Context(), expired: make(chan struct{})}
}

func (e *expiring) expire() { close(e.expired) }

func (e *expiring) Deadline() (time.Time, bool) { return time.Now().Add(time.Hour), true }

func (e *expiring) Done() <-chan struct{} { return e.expired }

func (e *expiring) Err() error {
	select {
	case <-e.expired:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// deleteQueue is a call that is only looked at for its error.
func deleteQueue(ctx context.Context, client *fila.Client, queue string) error {
	_, err := client.DeleteQueue(ctx, queue)
	return err
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it did not happen in time: %s", what)
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("it failed: %v", err)
	}
}

func wantKind(t *testing.T, err, kind error) *fila.Error {
	t.Helper()
	var failure *fila.Error
	if !errors.As(err, &failure) {
		t.Fatalf("want %q, got %v", kind, err)
	}
	equal(t, "kind of "+err.Error(), failure.Kind, kind)
	return failure
}

func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}
