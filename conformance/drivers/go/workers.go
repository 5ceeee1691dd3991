// SPDX-License-Identifier: AGPL-3.0-only

// The operations about workers, and the handler that does what a message says.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	fila "github.com/faiscadev/fila/sdks/go"
)

// worker keeps what its handlers did.
type worker struct {
	stop context.CancelFunc
	// ended is closed when it has ended, with err.
	ended chan struct{}
	err   error

	lock    sync.Mutex
	handled []object
	batches []int
	running int
	most    int
	// changed is closed, and replaced, when a handling has ended.
	changed chan struct{}
}

func (d *driver) work(ctx context.Context, c *fila.Client, r *request) (object, error) {
	options := []fila.WorkerOption{
		fila.WithVisibilityTimeout(exactly(r.VisibilityTimeoutMS)),
		fila.WithHandlerTimeout(millis(r.HandlerTimeoutMS)),
	}
	if r.Concurrency != nil {
		options = append(options, fila.WithConcurrency(*r.Concurrency))
	}
	if r.Prefetch != nil {
		options = append(options, fila.WithPrefetch(*r.Prefetch))
	}
	if r.GraceMS != nil {
		options = append(options, fila.WithGrace(millis(*r.GraceMS)))
	}
	w := &worker{
		ended: make(chan struct{}), changed: make(chan struct{}), handled: []object{}, batches: []int{},
	}
	var made *fila.Worker
	var err error
	if r.BatchSize != nil {
		made, err = c.BatchWorker(r.Queue, *r.BatchSize, w.handle, options...)
	} else {
		one := func(ctx context.Context, message *fila.ConsumeMessage) error {
			return w.handle(ctx, []*fila.ConsumeMessage{message})
		}
		made, err = c.Worker(r.Queue, one, options...)
	}
	if err != nil {
		return nil, err
	}
	// The worker outlives this request, and keeps its span.
	ctx, w.stop = context.WithCancel(context.WithoutCancel(ctx))
	d.lock.Lock()
	d.workers[r.Worker] = w
	d.lock.Unlock()
	go func() {
		w.err = made.Run(ctx)
		close(w.ended)
	}()
	return object{}, nil
}

func (d *driver) workerOf(r *request) (*worker, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	if found := d.workers[r.Worker]; found != nil {
		return found, nil
	}
	return nil, fmt.Errorf("no worker is called %s", r.Worker)
}

func (d *driver) handled(ctx context.Context, r *request) (object, error) {
	w, err := d.workerOf(r)
	if err != nil {
		return nil, err
	}
	waiting, cancel := context.WithTimeout(ctx, millis(r.WaitMS))
	defer cancel()
	for {
		w.lock.Lock()
		found := object{
			"handled": w.handled, "batches": w.batches,
			"running": w.running, "most_running": w.most,
		}
		isEnough, changed := uint64(len(w.handled)) >= r.Count, w.changed
		w.lock.Unlock()
		if isEnough || waiting.Err() != nil {
			return found, nil
		}
		select {
		case <-changed:
		case <-waiting.Done():
		}
	}
}

func (d *driver) stopWorker(_ context.Context, r *request) (object, error) {
	w, err := d.workerOf(r)
	if err != nil {
		return nil, err
	}
	w.stop()
	<-w.ended
	return object{}, w.err
}

func (w *worker) handle(ctx context.Context, messages []*fila.ConsumeMessage) error {
	w.lock.Lock()
	w.running++
	w.most = max(w.most, w.running)
	w.lock.Unlock()
	defer func() {
		w.lock.Lock()
		defer w.lock.Unlock()
		w.running--
		w.batches = append(w.batches, len(messages))
		for _, m := range messages {
			w.handled = append(w.handled, object{
				"message_id":    m.ID,
				"payload":       append([]byte{}, m.Payload...),
				"attempt_count": m.AttemptCount,
			})
		}
		close(w.changed)
		w.changed = make(chan struct{})
	}()
	return obey(ctx, messages[0])
}

// order is what a payload says that the handler should do.
type order struct {
	SleepMS      int64  `json:"sleep_ms"`
	Then         string `json:"then"`
	Text         string `json:"text"`
	RetryAfterMS int64  `json:"retry_after_ms"`
	ThrottleKey  string `json:"throttle_key"`
}

func obey(ctx context.Context, message *fila.ConsumeMessage) error {
	var told order
	if len(message.Payload) > 0 {
		if err := json.Unmarshal(message.Payload, &told); err != nil {
			return err
		}
	}
	select {
	case <-time.After(millis(told.SleepMS)):
	case <-ctx.Done():
		return ctx.Err()
	}
	switch told.Then {
	case "", "return":
		return nil
	case "fail":
		return errors.New(told.Text)
	case "dead_letter":
		return &fila.DeadLetter{Reason: told.Text}
	case "backpressure":
		return &fila.Backpressure{
			RetryAfter: millis(told.RetryAfterMS), ThrottleKey: told.ThrottleKey,
		}
	case "ack":
		return message.Ack(ctx)
	case "exit":
		os.Exit(9)
	}
	return fmt.Errorf("a handler cannot %q", told.Then)
}
