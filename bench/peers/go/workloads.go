// SPDX-License-Identifier: AGPL-3.0-only

package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	senders    = 64                     // calls of an open loop that may be held up at a time
	lead       = 200 * time.Millisecond // until all senders are at work
	stampBytes = 8
	lowestUS   = 1
	highestUS  = 600_000_000
	digits     = 2
)

// lifecycle enqueues all messages, then receives and acks them all.
func lifecycle(chosen spec, clients []client) (map[string]any, error) {
	ctx := context.Background()
	payload := make([]byte, chosen.Bytes)
	each := chosen.Messages / len(clients)
	total := int64(each * len(clients))
	began := time.Now()
	err := together(clients, func(c client) error { return c.produce(ctx, payload, each) })
	if err != nil {
		return nil, fmt.Errorf("enqueue: %w", err)
	}
	enqueued := time.Since(began)
	var received, settled atomic.Int64
	running, stop := context.WithCancel(ctx)
	defer stop()
	var ended time.Time
	var unsettled error
	counter := sink{
		seen: func(payload []byte) { received.Add(int64(len(payload))) },
		acked: func(count int) {
			if settled.Add(int64(count)) == total {
				unsettled = clients[0].settle(ctx)
				ended = time.Now()
				stop()
			}
		},
	}
	began = time.Now()
	err = together(clients, func(c client) error { return c.consume(running, counter) })
	if err != nil {
		return nil, fmt.Errorf("consume: %w", err)
	}
	if unsettled != nil {
		return nil, fmt.Errorf("settle: %w", unsettled)
	}
	if want := total * int64(chosen.Bytes); received.Load() != want {
		return nil, fmt.Errorf("%d bytes of payload came, %d were sent", received.Load(), want)
	}
	return map[string]any{
		"messages":  total,
		"enqueue_s": enqueued.Seconds(),
		"consume_s": ended.Sub(began).Seconds(),
	}, nil
}

// together runs the work for all clients at once and returns the first error.
func together(clients []client, work func(client) error) error {
	var group sync.WaitGroup
	failures := make(chan error, len(clients))
	for _, c := range clients {
		group.Go(func() { failures <- work(c) })
	}
	group.Wait()
	close(failures)
	for err := range failures {
		if err != nil {
			return err
		}
	}
	return nil
}

// latencies is a histogram that many may write to.
type latencies struct {
	lock      sync.Mutex
	histogram *hdrhistogram.Histogram
}

func newLatencies() *latencies {
	return &latencies{histogram: hdrhistogram.New(lowestUS, highestUS, digits)}
}

// record counts from when the message was due: a wait before it left is a wait.
func (l *latencies) record(due time.Duration, now time.Duration) error {
	waited := min(max((now-due).Microseconds(), lowestUS), highestUS)
	l.lock.Lock()
	defer l.lock.Unlock()
	return l.histogram.RecordValue(waited)
}

func (l *latencies) encoded() (string, error) {
	text, err := l.histogram.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	return string(text), err
}

// latency sends messages at a fixed rate, each when it is due, and measures how late they come.
func latency(chosen spec, clients []client) (map[string]any, error) {
	confirmed, delivered := newLatencies(), newLatencies()
	running, stop := context.WithCancel(context.Background())
	defer stop()
	epoch := time.Now().Add(lead)
	left := atomic.Int64{}
	left.Store(int64(chosen.Messages))
	listener := sink{
		seen: func(payload []byte) {
			due := time.Duration(binary.BigEndian.Uint64(payload))
			_ = delivered.record(due, time.Since(epoch)) // it is within bounds
		},
		acked: func(count int) {
			if left.Add(-int64(count)) == 0 {
				stop()
			}
		},
	}
	var work sync.WaitGroup
	failures := make(chan error, senders+1)
	work.Go(func() { failures <- clients[0].consume(running, listener) })
	var next atomic.Int64
	for range senders {
		work.Go(func() {
			for number := next.Add(1) - 1; number < int64(chosen.Messages); number = next.Add(1) - 1 {
				due := time.Duration(float64(number) / chosen.Rate * float64(time.Second))
				time.Sleep(due - time.Since(epoch))
				payload := make([]byte, chosen.Bytes)
				binary.BigEndian.PutUint64(payload[:stampBytes], uint64(due))
				if err := clients[1].send(context.Background(), payload); err != nil {
					failures <- err
					stop()
					return
				}
				_ = confirmed.record(due, time.Since(epoch)) // it is within bounds
			}
		})
	}
	work.Wait()
	close(failures)
	for err := range failures {
		if err != nil {
			return nil, err
		}
	}
	result := map[string]any{}
	for name, of := range map[string]*latencies{"delivered": delivered, "confirmed": confirmed} {
		text, err := of.encoded()
		if err != nil {
			return nil, err
		}
		result[name] = text
	}
	return result, nil
}
