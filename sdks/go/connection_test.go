// SPDX-License-Identifier: AGPL-3.0-only

package fila_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	fila "github.com/faiscadev/fila/sdks/go"
	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

func cert(name string) string { return filepath.Join("testdata", name) }

func secureBroker(t *testing.T, isMutual bool) *broker {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(cert("server.pem"), cert("server.key"))
	check(t, err)
	config := &tls.Config{Certificates: []tls.Certificate{pair}}
	if isMutual {
		pem, err := os.ReadFile(cert("ca.pem"))
		check(t, err)
		config.ClientCAs = x509.NewCertPool()
		equal(t, "CA", config.ClientCAs.AppendCertsFromPEM(pem), true)
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return startBroker(t, grpc.Creds(credentials.NewTLS(config)))
}

func TestUnaryCallsCarryTheClientsDeadline(t *testing.T) {
	b := startBroker(t)
	b.scriptPipelines(unknown)
	client := newClient(t, b.target, fila.WithTimeout(70*time.Second))
	b.script("GetStats", replyWith(&filapb.GetStatsResponse{}))
	b.script("Receive", replyWith(&filapb.ReceiveResponse{}))
	_, err := client.Enqueue(t.Context(), "orders", nil, nil)
	check(t, err)
	_, err = client.EnqueueMany(t.Context(), []fila.EnqueueMessage{{Queue: "orders"}})
	check(t, err)
	_, err = client.Stats(t.Context(), "orders", 0)
	check(t, err)
	_, err = client.Receive(t.Context(), "orders", 5,
		fila.WithWait(100*time.Second), fila.WithVisibilityTimeout(time.Minute))
	check(t, err)
	for method, least := range map[string]time.Duration{
		"EnqueueBatch": 50 * time.Second, "GetStats": 50 * time.Second,
		"Receive": 150 * time.Second,
	} {
		for _, call := range b.seenOf(method) {
			if call.left < least || call.left > least+20*time.Second+time.Millisecond {
				t.Fatalf("%s has %v left", method, call.left)
			}
		}
	}
	receive := b.seenOf("Receive")[0].request.(*filapb.ReceiveRequest)
	equal(t, "wait", receive.GetWaitMs(), 100_000)
	equal(t, "messages", receive.GetMaxMessages(), 5)
	equal(t, "visibility timeout", receive.GetVisibilityTimeoutMs(), 60_000)
}

func TestDeadlineOfTheContextWinsOverTheClients(t *testing.T) {
	b := startBroker(t)
	b.scriptPipelines(unknown)
	client := newClient(t, b.target, fila.WithTimeout(time.Millisecond))
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	_, err := client.Enqueue(ctx, "orders", nil, nil)
	check(t, err)
	if left := b.seenOf("EnqueueBatch")[0].left; left < 50*time.Minute {
		t.Fatalf("the call has %v left", left)
	}
}

func TestDeadlineIsEnforcedWhenNobodyAnswers(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target, fila.WithTimeout(30*time.Millisecond))
	b.script("EnqueueBatch", held(nil, b.store))
	b.script("GetStats", held(nil, replyWith(&filapb.GetStatsResponse{})))
	_, err := client.Enqueue(t.Context(), "orders", nil, nil)
	failure := wantKind(t, err, fila.ErrDeadlineExceeded)
	equal(t, "retryable", failure.Retryable, true)
	_, err = client.Stats(t.Context(), "orders", 0)
	wantKind(t, err, fila.ErrDeadlineExceeded)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal("the context's error is not in the chain")
	}
}

func TestCallWhoseTimeIsUpIsNotSent(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	_, err := client.Enqueue(ctx, "orders", nil, nil)
	wantKind(t, err, fila.ErrDeadlineExceeded)
	_, err = client.Stats(ctx, "orders", 0)
	failure := wantKind(t, err, fila.ErrDeadlineExceeded)
	equal(t, "text", failure.Error(), "the deadline passed before the request was sent")
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	wantKind(t, deleteQueue(ctx, client, "orders"), fila.ErrCanceled)
	b.lock.Lock()
	defer b.lock.Unlock()
	equal(t, "calls", len(b.calls), 0)
}

func TestEveryCallCarriesTheKeyAndTheUserAgent(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target, fila.WithAPIKey("s3cret"))
	b.script("DeleteQueue", replyWith(&filapb.DeleteQueueResponse{}))
	consume(t, client)
	b.waitForCalls("Consume", 1)
	check(t, deleteQueue(t.Context(), client, "orders"))
	check(t, client.Ack(t.Context(), "orders", "m", ""))
	for _, method := range []string{"Consume", "DeleteQueue", "AckBatch"} {
		md := b.seenOf(method)[0].metadata
		equal(t, "authorization", strings.Join(md.Get("authorization"), ","), "Bearer s3cret")
		agent := strings.Join(md.Get("user-agent"), ",")
		if !strings.HasPrefix(agent, "fila-go/"+fila.Version) {
			t.Fatalf("user agent %q", agent)
		}
	}
}

func TestNoKeyMeansNoAuthorization(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	check(t, client.Ack(t.Context(), "orders", "m", ""))
	md := b.seenOf("AckBatch")[0].metadata
	equal(t, "authorization", len(md.Get("authorization")), 0)
	equal(t, "traceparent", len(md.Get("traceparent")), 0)
}

func TestAnswersBeyondGRPCsUsualLimitAreTaken(t *testing.T) {
	b := startBroker(t)
	large := frame("m-1")
	large.Messages[0].Payload = make([]byte, 10<<20)
	b.script("Receive", replyWith(&filapb.ReceiveResponse{Messages: large.GetMessages()}))
	messages, err := newClient(t, b.target).Receive(t.Context(), "orders", 1)
	check(t, err)
	equal(t, "bytes", len(messages[0].Payload), 10<<20)
	_, err = newClient(t, b.target, fila.WithMaxMessageBytes(1<<20)).
		Receive(t.Context(), "orders", 1)
	wantKind(t, err, fila.ErrResourceExhausted)
}

func TestTLSWithAPrivateCA(t *testing.T) {
	b := secureBroker(t, false)
	for _, options := range []fila.TLSOptions{
		{CAFile: cert("ca.pem")}, {CAFile: cert("ca.pem"), ServerName: "localhost"},
	} {
		client := newClient(t, b.target, fila.WithTLS(options))
		check(t, client.Ack(t.Context(), "orders", "m", ""))
	}
	refused := map[string][]fila.ClientOption{
		"another CA":   {fila.WithTLS(fila.TLSOptions{CAFile: cert("other_ca.pem")})},
		"system roots": {fila.WithTLS(fila.TLSOptions{})},
		"no TLS":       nil,
		"another name": {fila.WithTLS(fila.TLSOptions{
			CAFile: cert("ca.pem"), ServerName: "elsewhere",
		})},
	}
	for name, options := range refused {
		err := newClient(t, b.target, options...).Ack(t.Context(), "orders", "m", "")
		if !errors.Is(err, fila.ErrUnavailable) {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

func TestMutualTLS(t *testing.T) {
	b := secureBroker(t, true)
	own := fila.TLSOptions{
		CAFile: cert("ca.pem"), CertFile: cert("client.pem"), KeyFile: cert("client.key"),
	}
	check(t, newClient(t, b.target, fila.WithTLS(own)).Ack(t.Context(), "orders", "m", ""))
	anonymous := fila.WithTLS(fila.TLSOptions{CAFile: cert("ca.pem")})
	err := newClient(t, b.target, anonymous).Ack(t.Context(), "orders", "m", "")
	wantKind(t, err, fila.ErrUnavailable)
}

func TestOptionsThatCannotBeUsedAreNamed(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "text")
	check(t, os.WriteFile(broken, []byte("no PEM"), 0o600))
	good := "127.0.0.1:5555"
	for _, each := range []struct {
		target string
		option fila.ClientOption
		want   string
	}{
		{"localhost", nil, `target "localhost" is not host:port`},
		{"", nil, `target "" is not host:port`},
		{":5555", nil, `target ":5555" is not host:port`},
		{"http://localhost:5555", nil, "is not host:port"},
		{"localhost:0", nil, "is not host:port"},
		{"localhost:65536", nil, "is not host:port"},
		{"::1:5555", nil, "is not host:port"},
		{"localhost:5555,", nil, `target "" is not host:port`},
		{"localhost:5555,elsewhere", nil, `target "elsewhere" is not host:port`},
		{"localhost:5555,unix:/run/fila", nil, `target "unix:/run/fila" cannot be one of several`},
		{good, fila.WithTimeout(0), "timeout must be positive, got 0s"},
		{good, fila.WithCloseTimeout(-1), "close timeout must not be negative, got -1ns"},
		{good, fila.WithMaxBufferedBytes(0), "max buffered bytes must be positive, got 0"},
		{good, fila.WithMaxMessageBytes(0), "max message bytes must be positive, got 0"},
		{good, fila.WithBackoff(fila.Backoff{Initial: -1}), "backoff needs 0 < Initial"},
		{good, fila.WithBackoff(fila.Backoff{Initial: time.Minute}), "got 1m0s and 5s"},
		{good, fila.WithTLS(fila.TLSOptions{CAFile: "nowhere"}),
			`cannot read tls ca file "nowhere": no such file or directory`},
		{good, fila.WithTLS(fila.TLSOptions{CAFile: broken}), "holds no certificate in PEM"},
		{good, fila.WithTLS(fila.TLSOptions{CertFile: cert("client.pem")}),
			"tls cert and key go together"},
		{good, fila.WithTLS(fila.TLSOptions{CertFile: broken, KeyFile: broken}),
			"cannot be used"},
		{good, fila.WithTLS(fila.TLSOptions{CertFile: cert("client.pem"), KeyFile: "nowhere"}),
			`cannot read tls key file "nowhere"`},
		{good, fila.WithTLS(fila.TLSOptions{Key: []byte("PEM")}), "tls cert and key go together"},
		{good, fila.WithTLS(fila.TLSOptions{CAFile: broken, CA: []byte("PEM")}),
			"in memory; give one"},
		{good, fila.WithTLS(fila.TLSOptions{CA: []byte("text")}),
			"tls ca holds no certificate in PEM"},
		{good, fila.Both(fila.WithTLS(fila.TLSOptions{}), fila.WithTLSConfig(&tls.Config{})),
			"tls options and a tls config exclude each other"},
		{good, fila.Both(fila.WithAPIKey("key"), fila.WithAPIKeyFunc((&keys{}).get)),
			"an api key and a function for it exclude each other"},
	} {
		var options []fila.ClientOption
		if each.option != nil {
			options = append(options, each.option)
		}
		_, err := fila.NewClient(each.target, options...)
		failure := wantKind(t, err, fila.ErrInvalidArgument)
		if !strings.Contains(failure.Error(), each.want) {
			t.Fatalf("%q does not say %q", failure.Error(), each.want)
		}
	}
}

func TestKeyThatCannotBeSentIsRefusedAndNotShown(t *testing.T) {
	for _, key := range []string{"", "two words", "line\nbreak", "schlüssel"} {
		_, err := fila.NewClient("127.0.0.1:5555", fila.WithAPIKey(key))
		failure := wantKind(t, err, fila.ErrInvalidArgument)
		if key != "" && strings.Contains(failure.Error(), key) {
			t.Fatalf("the error shows the key: %v", err)
		}
	}
	client := newClient(t, "127.0.0.1:5555", fila.WithAPIKey("s3cret"))
	if shown := fmt.Sprint(client.Close(), client); strings.Contains(shown, "s3cret") {
		t.Fatal("fmt shows the key")
	}
}

func TestTargetsWithASchemeAndIPv6AreTaken(t *testing.T) {
	for _, target := range []string{"dns:///localhost:5555", "[::1]:5555", "unix:/run/fila"} {
		newClient(t, target)
	}
}

func TestNobodyThereIsUnavailable(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	target := listener.Addr().String()
	check(t, listener.Close())
	failure := wantKind(t, deleteQueue(t.Context(), newClient(t, target), "q"), fila.ErrUnavailable)
	equal(t, "code", failure.Code, codes.Unavailable)
}

func TestClientFindsABrokerThatRestarted(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target, quick)
	check(t, client.Ack(t.Context(), "orders", "m", ""))
	b.stop()
	eventually(t, "the loss is noticed", func() bool {
		return errors.Is(client.Ack(t.Context(), "orders", "m", ""), fila.ErrUnavailable)
	})
	startBrokerAt(t, b.target, frames())
	eventually(t, "the broker is found", func() bool {
		return client.Ack(t.Context(), "orders", "m", "") == nil
	})
}

func TestCloseEndsCallsUnderWayAndIsHarmlessTwice(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target, fila.WithCloseTimeout(0))
	gate := make(chan struct{})
	defer close(gate)
	early := occupy(t, b, client, gate)
	late := waiting(t.Context(), t, client, "waits")
	b.script("GetStats", held(gate, replyWith(&filapb.GetStatsResponse{})))
	asking := make(chan error, 1)
	go func() {
		_, err := client.Stats(t.Context(), "orders", 0)
		asking <- err
	}()
	b.waitForCalls("GetStats", 1)
	check(t, client.Close())
	check(t, client.Close())
	for _, done := range append(early, late...) {
		wantKind(t, (<-done).err, fila.ErrClientClosed)
	}
	wantKind(t, <-asking, fila.ErrClientClosed)
}

func TestEveryCallAfterCloseFailsWithClientClosed(t *testing.T) {
	client := newClient(t, startBroker(t).target)
	check(t, client.Close())
	ctx := t.Context()
	failures := map[string]error{
		"Ack":    client.Ack(ctx, "q", "m", ""),
		"Nack":   client.Nack(ctx, "q", "m", "", ""),
		"Delete": deleteQueue(ctx, client, "q"),
	}
	_, failures["Enqueue"] = client.Enqueue(ctx, "q", nil, nil)
	_, failures["EnqueueMany"] = client.EnqueueMany(ctx, nil)
	_, failures["Consume"] = client.Consume(ctx, "q")
	_, failures["Receive"] = client.Receive(ctx, "q", 1)
	_, failures["Extend"] = client.Extend(ctx, "q", "m", "", 0)
	_, failures["AckMany"] = client.AckMany(ctx, nil)
	_, failures["NackMany"] = client.NackMany(ctx, nil, "")
	failures["Flush"] = client.Flush(ctx)
	_, failures["AckGrant"] = client.AckGrant(ctx, "q", "t")
	_, failures["Stats"] = client.Stats(ctx, "q", 0)
	for name, err := range failures {
		if !errors.Is(err, fila.ErrClientClosed) {
			t.Fatalf("%s: %v", name, err)
		}
	}
}
