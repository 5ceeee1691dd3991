// SPDX-License-Identifier: AGPL-3.0-only

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

type redisClient struct {
	chosen   spec
	redis    *redis.Client
	consumer string
}

func dialRedis(chosen spec) (client, error) {
	size := underWay
	switch {
	case chosen.What == "latency":
		size = senders
	case chosen.Window == 1:
		size = 1
	}
	connected := redis.NewClient(&redis.Options{
		Addr: chosen.Address, PoolSize: size, ReadTimeout: timeout, PoolTimeout: timeout,
	})
	consumer := fmt.Sprintf("%p", connected)
	return &redisClient{chosen, connected, consumer}, connected.Ping(context.Background()).Err()
}

func (c *redisClient) message(payload []byte) *redis.XAddArgs {
	return &redis.XAddArgs{Stream: c.chosen.Queue, Values: []any{"p", payload}}
}

func (c *redisClient) produce(ctx context.Context, payload []byte, count int) error {
	starts := make(chan int, count/c.chosen.Window+1)
	for start := 0; start < count; start += c.chosen.Window {
		starts <- start
	}
	close(starts)
	loops := make([]client, 1)
	if c.chosen.Window > 1 {
		loops = make([]client, underWay)
	}
	return together(loops, func(client) error {
		for start := range starts {
			pipeline := c.redis.Pipeline()
			for range min(c.chosen.Window, count-start) {
				pipeline.XAdd(ctx, c.message(payload))
			}
			if _, err := pipeline.Exec(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

func (c *redisClient) send(ctx context.Context, payload []byte) error {
	return c.redis.XAdd(ctx, c.message(payload)).Err()
}

func (c *redisClient) consume(ctx context.Context, to sink) error {
	request := &redis.XReadGroupArgs{
		Group: group, Consumer: c.consumer, Streams: []string{c.chosen.Queue, ">"},
		Count: int64(c.chosen.Window), Block: patience,
	}
	for ctx.Err() == nil {
		found, err := c.redis.XReadGroup(ctx, request).Result()
		if errors.Is(err, redis.Nil) {
			continue
		}
		if err != nil {
			return ignoring(ctx, err)
		}
		numbers := make([]string, 0, c.chosen.Window)
		for _, message := range found[0].Messages {
			to.seen([]byte(message.Values["p"].(string)))
			numbers = append(numbers, message.ID)
		}
		pipeline := c.redis.Pipeline()
		pipeline.XAck(context.Background(), c.chosen.Queue, group, numbers...)
		pipeline.XDel(context.Background(), c.chosen.Queue, numbers...)
		if _, err := pipeline.Exec(context.Background()); err != nil {
			return err
		}
		to.acked(len(numbers))
	}
	return nil
}

// settle has nothing to wait for: every ack was answered.
func (c *redisClient) settle(context.Context) error { return nil }

func (c *redisClient) close() { _ = c.redis.Close() }
