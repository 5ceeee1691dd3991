// SPDX-License-Identifier: AGPL-3.0-only

package main

import (
	"context"
	"time"
)

const (
	// Requests that a connection may have under way, as in bench/peers/peer.py.
	underWay = 4
	// A batch that does not fill is settled after this.
	lull = 20 * time.Millisecond
	// What a blocking receive waits before it looks whether all is over.
	patience = 200 * time.Millisecond
	// No single call takes so long unless something is wrong.
	timeout = 60 * time.Second
	group   = "bench"
)

// sink hears of messages: when they come, and when they are acked. It is safe for concurrent use.
type sink struct {
	seen  func(payload []byte)
	acked func(count int)
}

// client is one connection, or what its library calls one. A window of 1 is one message per call.
type client interface {
	// produce enqueues messages and returns when all are confirmed.
	produce(ctx context.Context, payload []byte, count int) error
	// send enqueues one message; it may be called by many at a time.
	send(ctx context.Context, payload []byte) error
	// consume receives and acks until the context ends.
	consume(ctx context.Context, to sink) error
	// settle returns when the broker has seen every ack that was sent without asking for an answer.
	settle(ctx context.Context) error
	close()
}

var peers = map[string]func(spec) (client, error){
	"fila":       dialFila,
	"redis":      dialRedis,
	"rabbitmq":   dialRabbitMQ,
	"nats":       dialJetStream,
	"nats-sync":  dialJetStream,
	"beanstalkd": dialBeanstalkd,
}

// credit is how many messages a consumer may hold unsettled.
func credit(window int) int {
	if window == 1 {
		return 1
	}
	return underWay * window
}
