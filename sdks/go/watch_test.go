// SPDX-License-Identifier: AGPL-3.0-only

package fila_test

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	fila "github.com/faiscadev/fila/sdks/go"
	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

// diary is what a client has told about its connection, and its log.
type diary struct {
	lock   sync.Mutex
	events []fila.ConnectionEvent
	log    strings.Builder
}

func (d *diary) Write(line []byte) (int, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	return d.log.Write(line)
}

func (d *diary) note(event fila.ConnectionEvent) {
	d.lock.Lock()
	defer d.lock.Unlock()
	d.events = append(d.events, event)
}

func (d *diary) states() string {
	d.lock.Lock()
	defer d.lock.Unlock()
	var states []string
	for _, event := range d.events {
		states = append(states, string(event.State))
	}
	return strings.Join(states, " ")
}

func (d *diary) lines(of string) int {
	d.lock.Lock()
	defer d.lock.Unlock()
	return strings.Count(d.log.String(), of)
}

func (d *diary) waitFor(t *testing.T, states string) {
	t.Helper()
	eventually(t, "events "+states, func() bool { return len(d.states()) >= len(states) })
	equal(t, "events", d.states(), states)
}

func (d *diary) options() []fila.ClientOption {
	return []fila.ClientOption{
		quick, fila.WithOnConnection(d.note),
		fila.WithLogger(slog.New(slog.NewTextHandler(d, nil))),
	}
}

func TestChangesOfTheConnectionAreToldOnceEach(t *testing.T) {
	b := startBroker(t)
	told := &diary{}
	client := newClient(t, b.target, told.options()...)
	ack := func() error { return client.Ack(t.Context(), "orders", "m", "") }
	equal(t, "events before the first use", told.states(), "")
	check(t, ack())
	check(t, ack())
	told.waitFor(t, "connected")
	b.stop()
	told.waitFor(t, "connected lost")
	for range 20 {
		if ack() == nil {
			t.Fatal("somebody answered")
		}
	}
	told.waitFor(t, "connected lost unreachable")
	startBrokerAt(t, b.target, frames())
	eventually(t, "the broker is found", func() bool { return ack() == nil })
	told.waitFor(t, "connected lost unreachable connected")
	reason := told.events[2].Err
	if !errors.Is(reason, fila.ErrUnavailable) || !strings.Contains(reason.Error(), "refused") {
		t.Fatalf("the reason is %v", reason)
	}
	for _, line := range []string{
		`level=WARN msg="connection to the broker was lost"`,
		`level=WARN msg="broker is unreachable" error=`,
		`level=INFO msg="connected to the broker again" away=`,
	} {
		equal(t, "lines of "+line, told.lines(line), 1)
	}
	equal(t, "lines", told.lines("\n"), 3)
}

func TestBrokerThatIsNotThereAtFirst(t *testing.T) {
	address := freeAddress(t)
	told := &diary{}
	client := newClient(t, address, told.options()...)
	wantKind(t, client.Ack(t.Context(), "orders", "m", ""), fila.ErrUnavailable)
	told.waitFor(t, "unreachable")
	startBrokerAt(t, address, frames())
	eventually(t, "the broker is found", func() bool {
		return client.Ack(t.Context(), "orders", "m", "") == nil
	})
	told.waitFor(t, "unreachable connected")
}

func TestListenerThatPanicsIsLoggedAndChangesNothing(t *testing.T) {
	b := startBroker(t)
	told := &diary{}
	client := newClient(t, b.target, append(told.options(),
		fila.WithOnConnection(func(event fila.ConnectionEvent) {
			told.note(event)
			panic("not today")
		}))...)
	check(t, client.Ack(t.Context(), "orders", "m", ""))
	b.stop()
	told.waitFor(t, "connected lost")
	eventually(t, "both are logged", func() bool {
		return told.lines(`level=ERROR msg="connection listener panicked" error="not today"`) == 2
	})
}

func TestCloseIsNoLoss(t *testing.T) {
	b := startBroker(t)
	told := &diary{}
	client := newClient(t, b.target, told.options()...)
	check(t, client.Ack(t.Context(), "orders", "m", ""))
	told.waitFor(t, "connected")
	check(t, client.Close())
	b.stop()
	equal(t, "events", told.states(), "connected")
	equal(t, "lines", told.lines("\n"), 0)
}

func TestConnectionThatNobodyUsesIsNotLost(t *testing.T) {
	b := startBroker(t)
	told := &diary{}
	client := newClient(t, b.target, append(told.options(),
		fila.WithDialOptions(grpc.WithIdleTimeout(20*time.Millisecond)))...)
	b.script("DeleteQueue", replyWith(&filapb.DeleteQueueResponse{}))
	for range 2 {
		check(t, deleteQueue(t.Context(), client, "orders"))
		told.waitFor(t, "connected")
		eventually(t, "gRPC lets go of it", func() bool { return fila.IsIdle(client) })
	}
	equal(t, "lines", told.lines("\n"), 0)
	b.stop()
	wantKind(t, deleteQueue(t.Context(), client, "orders"), fila.ErrUnavailable)
	told.waitFor(t, "connected lost unreachable")
}
