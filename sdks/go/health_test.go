// SPDX-License-Identifier: AGPL-3.0-only

package fila_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"

	fila "github.com/faiscadev/fila/sdks/go"
)

func health(status grpc_health_v1.HealthCheckResponse_ServingStatus) script {
	return replyWith(&grpc_health_v1.HealthCheckResponse{Status: status})
}

var (
	ready    = health(grpc_health_v1.HealthCheckResponse_SERVING)
	notReady = health(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
)

func TestPingReturnsHowLongTheAnswerTook(t *testing.T) {
	b := startBroker(t)
	b.script("Check", ready)
	began := time.Now()
	took, err := newClient(t, b.target).Ping(t.Context())
	check(t, err)
	if took <= 0 || took > time.Since(began) {
		t.Fatalf("the ping took %v", took)
	}
}

func TestPingOfABrokerThatDoesNotServeIsUnavailable(t *testing.T) {
	b := startBroker(t)
	b.script("Check", notReady)
	_, err := newClient(t, b.target).Ping(t.Context())
	failure := wantKind(t, err, fila.ErrUnavailable)
	equal(t, "text", failure.Error(), "not serving")
	_, err = newClient(t, freeAddress(t)).Ping(t.Context())
	wantKind(t, err, fila.ErrUnavailable)
}

func TestWaitReadyWaitsForABrokerThatIsNotThereYet(t *testing.T) {
	address := freeAddress(t)
	client := newClient(t, address, quick)
	found := make(chan error, 1)
	go func() { found <- client.WaitReady(t.Context()) }()
	b := startBrokerAt(t, address, frames())
	b.script("Check", notReady)
	b.waitForCalls("Check", 2)
	b.script("Check", ready)
	check(t, <-found)
}

func TestWaitReadySaysWhyTheLastPingFailed(t *testing.T) {
	b := startBroker(t)
	b.script("Check", notReady)
	client := newClient(t, b.target, quick)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	failure := wantKind(t, client.WaitReady(ctx), fila.ErrDeadlineExceeded)
	equal(t, "text", failure.Error(), "the deadline passed before the broker was ready: not serving")
	ctx, cancel = context.WithCancel(t.Context())
	found := make(chan error, 1)
	go func() { found <- client.WaitReady(ctx) }()
	b.waitForCalls("Check", len(b.seenOf("Check"))+1)
	cancel()
	wantKind(t, <-found, fila.ErrCanceled)
}

func TestWaitReadyEndsWithAnAnswerThatWaitingDoesNotCure(t *testing.T) {
	b := startBroker(t)
	b.script("Check", refuse(codes.Unimplemented, "no such service", ""))
	client := newClient(t, b.target, quick)
	wantKind(t, client.WaitReady(t.Context()), fila.ErrUnimplemented)
	check(t, client.Close())
	if err := client.WaitReady(t.Context()); !errors.Is(err, fila.ErrClientClosed) ||
		!strings.Contains(err.Error(), "closed") {
		t.Fatalf("after Close: %v", err)
	}
}
