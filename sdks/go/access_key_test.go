// SPDX-License-Identifier: AGPL-3.0-only

// Keys that change while a client lives, and what else an application may bring to gRPC.

package fila_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	fila "github.com/faiscadev/fila/sdks/go"
	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

// keys is a function for API keys that gives what it was told.
type keys struct {
	lock sync.Mutex
	key  string
	err  error
}

func (k *keys) set(key string, err error) {
	k.lock.Lock()
	defer k.lock.Unlock()
	k.key, k.err = key, err
}

func (k *keys) get(context.Context) (string, error) {
	k.lock.Lock()
	defer k.lock.Unlock()
	return k.key, k.err
}

func authorizations(calls []seen) string {
	var found []string
	for _, call := range calls {
		found = append(found, call.metadata.Get("authorization")...)
	}
	return strings.Join(found, ", ")
}

func TestKeyIsAskedForWithEachCallAndStream(t *testing.T) {
	b := startBroker(t)
	b.script("DeleteQueue", replyWith(&filapb.DeleteQueueResponse{}))
	given := &keys{key: "first"}
	client := newClient(t, b.target, fila.WithAPIKeyFunc(given.get))
	check(t, deleteQueue(t.Context(), client, "orders"))
	consume(t, client)
	b.waitForCalls("Consume", 1)
	given.set("second", nil)
	check(t, deleteQueue(t.Context(), client, "orders"))
	consume(t, client)
	b.waitForCalls("Consume", 2)
	equal(t, "calls", authorizations(b.seenOf("DeleteQueue")), "Bearer first, Bearer second")
	equal(t, "streams", authorizations(b.seenOf("Consume")), "Bearer first, Bearer second")
}

func TestAnotherKeyOpensAnotherPipeline(t *testing.T) {
	b := startBroker(t)
	hold, ended := make(chan struct{}), make(chan string, 2)
	b.scriptPipelines(func(stream grpc.ServerStream) error {
		md, _ := metadata.FromIncomingContext(stream.Context())
		defer func() { ended <- strings.Join(md.Get("authorization"), ",") }()
		for request := range requests(stream) {
			if firstPayload(request) == "slow" {
				<-hold
			}
			if err := stream.SendMsg(stored(request)); err != nil {
				return err
			}
		}
		return nil
	})
	given := &keys{key: "first"}
	client := newClient(t, b.target, fila.WithAPIKeyFunc(given.get))
	enqueue(t, client, "a")
	enqueue(t, client, "b")
	slow := make(chan error, 1)
	go func() {
		_, err := client.Enqueue(t.Context(), "orders", nil, []byte("slow"))
		slow <- err
	}()
	eventually(t, "the slow one is under way", func() bool { return fila.UnderWay(client) == 1 })
	given.set("second", nil)
	enqueue(t, client, "c")
	enqueue(t, client, "d")
	equal(t, "pipelines", authorizations(b.seenOf("Pipeline")), "Bearer first, Bearer second")
	close(hold)
	check(t, <-slow)
	equal(t, "the one that ends", <-ended, "Bearer first")
}

func TestFunctionThatFailsFailsThatCallAlone(t *testing.T) {
	b := startBroker(t)
	given := &keys{key: "s3cret"}
	client := newClient(t, b.target, fila.WithAPIKeyFunc(given.get))
	noVault := errors.New("the vault is sealed")
	given.set("", noVault)
	err := client.Ack(t.Context(), "orders", "m", "")
	failure := wantKind(t, err, fila.ErrUnauthenticated)
	equal(t, "message", failure.MessageID, "m")
	equal(t, "its own error is there", errors.Is(err, noVault), true)
	wantKind(t, deleteQueue(t.Context(), client, "orders"), fila.ErrUnauthenticated)
	for _, bad := range []string{"", "two words"} {
		given.set(bad, nil)
		failure = wantKind(t, deleteQueue(t.Context(), client, "orders"), fila.ErrInvalidArgument)
		if bad != "" && strings.Contains(failure.Error(), bad) {
			t.Fatalf("the error shows the key: %v", failure)
		}
	}
	equal(t, "calls", len(b.seenOf("AckBatch"))+len(b.seenOf("DeleteQueue")), 0)
	given.set("s3cret", nil)
	check(t, client.Ack(t.Context(), "orders", "m", ""))
	b.script("DeleteQueue", refuse(codes.Unauthenticated, "s3cret is no key", "UNAUTHENTICATED"))
	failure = wantKind(t, deleteQueue(t.Context(), client, "orders"), fila.ErrUnauthenticated)
	equal(t, "text", failure.Error(), "[redacted] is no key")
}

func TestFunctionThatPanicsFailsThatCallAlone(t *testing.T) {
	b := startBroker(t)
	panics := true
	client := newClient(t, b.target, fila.WithAPIKeyFunc(func(context.Context) (string, error) {
		if panics {
			panic("no vault")
		}
		return "s3cret", nil
	}))
	_, err := client.Enqueue(t.Context(), "orders", nil, []byte("x"))
	failure := wantKind(t, err, fila.ErrUnauthenticated)
	equal(t, "it says so", strings.Contains(failure.Error(), "panicked: no vault"), true)
	panics = false
	enqueue(t, client, "a")
}

func TestInterceptorsOfTheApplicationAreCalled(t *testing.T) {
	b := startBroker(t)
	b.script("DeleteQueue", replyWith(&filapb.DeleteQueueResponse{}))
	var lock sync.Mutex
	var met []string
	meet := func(method string) {
		lock.Lock()
		defer lock.Unlock()
		met = append(met, method[strings.LastIndex(method, "/")+1:])
	}
	client := newClient(t, b.target, fila.WithDialOptions(
		grpc.WithChainUnaryInterceptor(func(
			ctx context.Context, method string, request, answer any, channel *grpc.ClientConn,
			invoke grpc.UnaryInvoker, options ...grpc.CallOption,
		) error {
			meet(method)
			return invoke(ctx, method, request, answer, channel, options...)
		}),
		grpc.WithChainStreamInterceptor(func(
			ctx context.Context, what *grpc.StreamDesc, channel *grpc.ClientConn, method string,
			open grpc.Streamer, options ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			meet(method)
			return open(ctx, what, channel, method, options...)
		}),
	))
	check(t, deleteQueue(t.Context(), client, "orders"))
	check(t, client.Ack(t.Context(), "orders", "m", ""))
	lock.Lock()
	defer lock.Unlock()
	equal(t, "calls", strings.Join(met, " "), "DeleteQueue Pipeline")
}
