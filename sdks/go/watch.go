// SPDX-License-Identifier: AGPL-3.0-only

// What becomes of a client's connection: it is made, lost, or cannot be made. Each change is told
// once, in order, to the log and to whoever asked; never an attempt.
//
//	            .--> connected --> lost --.
//	nothing ----+        ^                +--> connected, or unreachable
//	            '--> unreachable          '
//
// gRPC has no notice of that which misses nothing and says why. Its balancing policies see every
// change, so this one is gRPC's own pick_first with an eye on what it reports.

package fila

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/pickfirst"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
)

// ConnectionState is what became of a client's connection.
type ConnectionState string

// The states.
const (
	ConnectionConnected   ConnectionState = "connected"
	ConnectionLost        ConnectionState = "lost"
	ConnectionUnreachable ConnectionState = "unreachable"
)

// ConnectionEvent is one change of a client's connection.
type ConnectionEvent struct {
	State ConnectionState
	// Err is why the broker is unreachable; nil for the others, since gRPC does not say why a
	// connection was lost.
	Err error
}

// watch knows how the connection of one client is. Events wait for a goroutine of their own, which
// lives while there are any: gRPC must not wait for a listener.
type watch struct {
	logger *slog.Logger
	tell   func(ConnectionEvent)

	lock sync.Mutex
	// state is empty before the first event.
	state     ConnectionState
	awaySince time.Time
	// isResting says that gRPC let go of a connection which nobody had used for long.
	isResting bool
	waiting   []change
	isTelling bool
	isOver    bool
}

// change is an event, and how long the connection was away before it.
type change struct {
	ConnectionEvent
	away time.Duration
}

// see is told every state of the policy. The picker of a failure says what failed.
func (w *watch) see(found balancer.State) {
	w.lock.Lock()
	defer w.lock.Unlock()
	isDecided := found.ConnectivityState == connectivity.Ready ||
		found.ConnectivityState == connectivity.TransientFailure
	if w.isResting && !isDecided {
		return
	}
	w.isResting = false
	if w.state == ConnectionConnected && found.ConnectivityState != connectivity.Ready {
		w.awaySince = time.Now()
		w.noteLocked(ConnectionLost, nil, 0)
	}
	switch {
	case found.ConnectivityState == connectivity.Ready && w.state != ConnectionConnected:
		away := time.Duration(0)
		if !w.awaySince.IsZero() {
			away = time.Since(w.awaySince)
		}
		w.noteLocked(ConnectionConnected, nil, away)
	case found.ConnectivityState == connectivity.TransientFailure &&
		w.state != ConnectionUnreachable:
		if w.awaySince.IsZero() {
			w.awaySince = time.Now()
		}
		_, err := found.Picker.Pick(balancer.PickInfo{})
		w.noteLocked(ConnectionUnreachable, unreachable(err), 0)
	}
}

// rest is told that there is no policy any more, until the connection is needed again.
func (w *watch) rest() {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.isResting = w.state == ConnectionConnected
}

func unreachable(err error) error {
	text := ""
	if err != nil {
		text = err.Error()
	}
	return newError(ErrUnavailable, codes.Unavailable, text, subject{}, err)
}

func (w *watch) noteLocked(state ConnectionState, err error, away time.Duration) {
	w.state = state
	if w.isOver {
		return
	}
	w.waiting = append(w.waiting, change{ConnectionEvent{state, err}, away})
	if !w.isTelling {
		w.isTelling = true
		go w.tellAll()
	}
}

// stop has nothing more told.
func (w *watch) stop() {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.isOver, w.waiting = true, nil
}

func (w *watch) tellAll() {
	for {
		w.lock.Lock()
		if len(w.waiting) == 0 {
			w.isTelling = false
			w.lock.Unlock()
			return
		}
		next := w.waiting[0]
		w.waiting = w.waiting[1:]
		w.lock.Unlock()
		w.log(next)
		if w.tell != nil {
			guard(w.logger, "connection listener", func() { w.tell(next.ConnectionEvent) })
		}
	}
}

func (w *watch) log(next change) {
	switch {
	case next.State == ConnectionLost:
		w.logger.Warn("connection to the broker was lost")
	case next.State == ConnectionUnreachable:
		w.logger.Warn("broker is unreachable", "error", next.Err)
	case next.away > 0:
		w.logger.Info("connected to the broker again", "away", next.away)
	}
}

// guard calls what an application has given. That it panics is for the log, and changes nothing.
func guard(logger *slog.Logger, what string, run func(), about ...any) {
	defer func() {
		if panicked := recover(); panicked != nil {
			logger.Error(what+" panicked", append(about,
				"error", fmt.Sprint(panicked), "stack", string(debug.Stack()))...)
		}
	}()
	run()
}

// watched is the name of the policy, and chosenPolicy how a client chooses it.
const (
	watched      = "fila_watched_pick_first"
	chosenPolicy = `{"loadBalancingConfig": [{"` + watched + `": {}}]}`
)

func init() { balancer.Register(watchedPolicy{}) }

type watchedPolicy struct{}

func (watchedPolicy) Name() string { return watched }

// Build finds the watch of the client by its credentials, the only thing of a client that gRPC
// shows here. An application that has brought its own has no watch.
func (watchedPolicy) Build(
	channel balancer.ClientConn, options balancer.BuildOptions,
) balancer.Balancer {
	policy := balancer.Get(pickfirst.Name)
	ours, isOurs := options.DialCreds.(*transport)
	if !isOurs {
		return policy.Build(channel, options)
	}
	seen := policy.Build(watchedChannel{channel, ours.watch}, options)
	return restingPolicy{seen, ours.watch}
}

type restingPolicy struct {
	balancer.Balancer
	watch *watch
}

func (p restingPolicy) Close() {
	p.Balancer.Close()
	p.watch.rest()
}

type watchedChannel struct {
	balancer.ClientConn
	watch *watch
}

func (c watchedChannel) UpdateState(found balancer.State) {
	c.watch.see(found)
	c.ClientConn.UpdateState(found)
}
