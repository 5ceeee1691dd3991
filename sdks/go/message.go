// SPDX-License-Identifier: AGPL-3.0-only

// What goes in and what comes out: messages to enqueue, their results, messages delivered. No I/O:
// settling goes through the client that received the message.

package fila

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

// EnqueueMessage is one message for Client.EnqueueMany. Only Queue is required.
type EnqueueMessage struct {
	Queue   string
	Headers map[string]string
	Payload []byte
	// FairnessKey is the group whose turn the message waits for; empty means "default".
	FairnessKey string
	// Weight is the share of the fairness key, 1 to 1000; 0 leaves it as it is.
	Weight uint32
	// ThrottleKeys are the limits that a delivery takes from, all or none.
	ThrottleKeys []string
	// ThrottleCost is what is taken from each of them; 0 means 1.
	ThrottleCost uint32
	// Delay and DeliverAt exclude each other.
	Delay     time.Duration
	DeliverAt time.Time
	// TTL drops the message when it was not delivered in time; 0 takes the queue's default.
	TTL time.Duration
	// IdempotencyKey makes a second enqueue with the same key store nothing.
	IdempotencyKey string
}

// EnqueueResult is what became of one message: its id, or the error that kept it from being stored.
type EnqueueResult struct {
	MessageID string
	// IsDuplicate is true when the idempotency key was known: nothing new was stored.
	IsDuplicate bool
	// Err is nil or an *Error.
	Err error
}

// Message is a message as the broker holds it. Client.Peek shows these; they cannot be settled.
type Message struct {
	ID           string
	Queue        string
	Headers      map[string]string
	Payload      []byte
	FairnessKey  string
	Weight       uint32
	ThrottleKeys []string
	// AttemptCount is 0 on the first delivery, and one more for each that failed or expired.
	AttemptCount uint32
	LeaseToken   string
	// LastError is what the most recent nack said; empty when nothing has failed.
	LastError string
	// Failures are the last five, oldest first; a redrive keeps them.
	Failures   []Failure
	EnqueuedAt time.Time
	// LeaseExpiresAt is the end of the lease as it was given; zero on a message without one.
	LeaseExpiresAt time.Time
}

// FailureCause is a kind of failure.
type FailureCause string

// The causes. FailureMaxAttempts and FailureHook are what dead-lettered the message.
const (
	FailureNack        FailureCause = "nack"
	FailureExpired     FailureCause = "expired"
	FailureMaxAttempts FailureCause = "max_attempts"
	FailureHook        FailureCause = "hook"
)

// Failure is one failure of a message.
type Failure struct {
	FailedAt time.Time
	Cause    FailureCause
	// Error is what was said about it; the broker cuts it to 256 bytes.
	Error string
}

// String leaves payload and headers out: they must not end up in a log by accident.
func (m Message) String() string {
	return fmt.Sprintf("message %q of queue %q (fairness key %q, attempt %d)",
		m.ID, m.Queue, m.FairnessKey, m.AttemptCount)
}

// ConsumeMessage is a message leased to this client: ack, nack or extend it.
type ConsumeMessage struct {
	Message

	client *Client
	// frame is what it came with, and place where in it.
	frame *frame
	place int
	// isSettled says that a method of this message, or of its client, settled it.
	isSettled atomic.Bool
}

// Ack reports that the message was processed; it is gone. Fails as Client.Ack does.
func (m *ConsumeMessage) Ack(ctx context.Context) error {
	return m.settledBy(m.client.ack(ctx, m.subject(), m.LeaseToken, m.frame.size))
}

// Nack reports that processing failed, and why. Fails as Client.Nack does.
func (m *ConsumeMessage) Nack(ctx context.Context, why string, options ...NackOption) error {
	return m.settledBy(m.client.Nack(ctx, m.Queue, m.ID, m.LeaseToken, why, options...))
}

// Extend makes the lease last that long from now, and returns its new end; 0 takes the queue's
// visibility timeout. Fails as Client.Ack does.
func (m *ConsumeMessage) Extend(ctx context.Context, lease time.Duration) (time.Time, error) {
	return m.client.Extend(ctx, m.Queue, m.ID, m.LeaseToken, lease)
}

// settledBy notes a success, so that a worker leaves the message alone.
func (m *ConsumeMessage) settledBy(err error) error {
	if err == nil {
		m.isSettled.Store(true)
	}
	return err
}

func (m *ConsumeMessage) subject() subject {
	return subject{queue: m.Queue, messageID: m.ID}
}

func readMessage(raw *filapb.Message) Message {
	metadata, timestamps := raw.GetMetadata(), raw.GetTimestamps()
	return Message{
		ID:             raw.GetId(),
		Queue:          metadata.GetQueueId(),
		Headers:        raw.GetHeaders(),
		Payload:        raw.GetPayload(),
		FairnessKey:    metadata.GetFairnessKey(),
		Weight:         metadata.GetWeight(),
		ThrottleKeys:   metadata.GetThrottleKeys(),
		AttemptCount:   metadata.GetAttemptCount(),
		LeaseToken:     metadata.GetLeaseToken(),
		LastError:      metadata.GetLastError(),
		Failures:       each(metadata.GetFailures(), readFailure),
		EnqueuedAt:     moment(timestamps.GetEnqueuedAt()),
		LeaseExpiresAt: moment(timestamps.GetLeaseExpiresAt()),
	}
}

func readFailure(raw *filapb.Failure) Failure {
	cause := enumValue("FAILURE_CAUSE_", filapb.FailureCause_name, int32(raw.GetCause()))
	return Failure{
		FailedAt: moment(raw.GetFailedAt()), Cause: FailureCause(cause), Error: raw.GetError(),
	}
}
