// SPDX-License-Identifier: AGPL-3.0-only

package main

import (
	"context"
	"errors"
	"strconv"
	"sync"

	fila "github.com/faiscadev/fila/sdks/go"
)

type filaClient struct {
	chosen spec
	client *fila.Client
}

func dialFila(chosen spec) (client, error) {
	connected, err := fila.NewClient(chosen.Address, fila.WithTimeout(timeout))
	if err != nil {
		return nil, err
	}
	// Connecting is lazy, and not what is measured.
	_, err = connected.Stats(context.Background(), chosen.Queue, 1)
	return &filaClient{chosen, connected}, err
}

func (c *filaClient) key(number int) string {
	return "tenant-" + strconv.Itoa(number%max(1, c.chosen.Keys))
}

func (c *filaClient) produce(ctx context.Context, payload []byte, count int) error {
	if c.chosen.Window == 1 {
		for number := range count {
			if err := c.enqueue(ctx, payload, c.key(number)); err != nil {
				return err
			}
		}
		return nil
	}
	starts := make(chan int, count/c.chosen.Window+1)
	for start := 0; start < count; start += c.chosen.Window {
		starts <- start
	}
	close(starts)
	loops := make([]client, underWay)
	return together(loops, func(client) error {
		for start := range starts {
			messages := make([]fila.EnqueueMessage, min(c.chosen.Window, count-start))
			for i := range messages {
				messages[i] = fila.EnqueueMessage{
					Queue: c.chosen.Queue, Payload: payload, FairnessKey: c.key(start + i),
				}
			}
			results, err := c.client.EnqueueMany(ctx, messages)
			if err != nil {
				return err
			}
			for _, result := range results {
				if result.Err != nil {
					return result.Err
				}
			}
		}
		return nil
	})
}

func (c *filaClient) enqueue(ctx context.Context, payload []byte, key string) error {
	_, err := c.client.Enqueue(ctx, c.chosen.Queue, nil, payload, fila.WithFairnessKey(key))
	return err
}

func (c *filaClient) send(ctx context.Context, payload []byte) error {
	return c.enqueue(ctx, payload, c.key(0))
}

func (c *filaClient) consume(ctx context.Context, to sink) error {
	if c.chosen.Window == 1 {
		return c.receive(ctx, to)
	}
	consumer, err := c.client.Consume(context.Background(), c.chosen.Queue,
		fila.WithMaxInFlight(uint32(credit(c.chosen.Window))),
		fila.WithBatchSize(uint32(c.chosen.Window)))
	if err != nil {
		return err
	}
	defer consumer.Close()
	acks := acker{client: c.client, to: to, slots: make(chan struct{}, underWay)}
	for ctx.Err() == nil {
		acks.ack(c.batch(ctx, consumer, to))
	}
	acks.work.Wait()
	return acks.err()
}

// batch returns a window of messages, or what came until there was a lull.
func (c *filaClient) batch(
	ctx context.Context, consumer *fila.Consumer, to sink,
) []*fila.ConsumeMessage {
	waiting, cancel := context.WithTimeout(ctx, lull)
	defer cancel()
	held := make([]*fila.ConsumeMessage, 0, c.chosen.Window)
	for len(held) < c.chosen.Window {
		message, err := consumer.Next(waiting)
		if err != nil {
			return held
		}
		to.seen(message.Payload)
		held = append(held, message)
	}
	return held
}

// receive takes and acks one message per call, as a process does that knows of no other.
func (c *filaClient) receive(ctx context.Context, to sink) error {
	for ctx.Err() == nil {
		found, err := c.client.Receive(ctx, c.chosen.Queue, 1, fila.WithWait(patience))
		if err != nil {
			return ignoring(ctx, err)
		}
		for _, message := range found {
			to.seen(message.Payload)
			if err := message.Ack(context.Background()); err != nil {
				return err
			}
			to.acked(1)
		}
	}
	return nil
}

// settle has nothing to wait for: every ack was answered.
func (c *filaClient) settle(context.Context) error { return nil }

func (c *filaClient) close() { _ = c.client.Close() }

// acker settles batches while the next ones come, a few at a time.
type acker struct {
	client *fila.Client
	to     sink
	slots  chan struct{}
	work   sync.WaitGroup
	lock   sync.Mutex
	failed []error
}

func (a *acker) ack(messages []*fila.ConsumeMessage) {
	if len(messages) == 0 {
		return
	}
	a.slots <- struct{}{}
	a.work.Go(func() {
		defer func() { <-a.slots }()
		refused, err := a.client.AckMany(context.Background(), messages)
		if err = errors.Join(append(refused, err)...); err != nil {
			a.lock.Lock()
			a.failed = append(a.failed, err)
			a.lock.Unlock()
			return
		}
		a.to.acked(len(messages))
	})
}

func (a *acker) err() error { return errors.Join(a.failed...) }

// ignoring returns nil where the error is that the work was called off.
func ignoring(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
