// SPDX-License-Identifier: AGPL-3.0-only

// Whether the broker is there: asked once, or until it is.

package fila

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// What a broker that has a million messages to read takes to start, and then some.
const defaultReadyTimeout = 30 * time.Second

// Ping asks the broker whether it serves, and returns how long the answer took. It needs no
// permission. Fails with ErrUnavailable when nobody is there, or somebody who is not serving.
func (c *Client) Ping(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	request := &grpc_health_v1.HealthCheckRequest{}
	answer, err := once(ctx, c.connection, c.connection.health.Check, request, subject{})
	if err != nil {
		return 0, err
	}
	if answer.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		return 0, newError(ErrUnavailable, codes.Unavailable, "not serving", subject{}, nil)
	}
	return time.Since(began), nil
}

// WaitReady pings until the broker serves. Without a deadline in the context it waits for 30 s;
// fails with ErrDeadlineExceeded, which says why the last ping failed, when that is not enough.
//
// It is for tests, and for scripts that start beside their broker. Everybody else just begins:
// consumers and workers wait for their broker anyway.
func (c *Client) WaitReady(ctx context.Context) error {
	if _, has := ctx.Deadline(); !has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultReadyTimeout)
		defer cancel()
	}
	last := "no ping was answered"
	for attempt := 0; ; attempt++ {
		err := c.pingWithin(ctx)
		isAway := errors.Is(err, ErrUnavailable) || errors.Is(err, ErrDeadlineExceeded)
		if err == nil || !isAway && ctx.Err() == nil {
			return err
		}
		if ctx.Err() == nil {
			// One that ran out of time, as the very last one may, says less than those before it.
			if attempt == 0 || !errors.Is(err, ErrDeadlineExceeded) {
				last = err.Error()
			}
			err = c.connection.pause(ctx, c.connection.backoff.delay(attempt, rand.Float64()))
		}
		if ctx.Err() != nil {
			return ended(ctx, "before the broker was ready: "+last, subject{})
		}
		if err != nil {
			return err
		}
	}
}

// pingWithin gives one ping the client's timeout, of what is left.
func (c *Client) pingWithin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.connection.timeout)
	defer cancel()
	_, err := c.Ping(ctx)
	return err
}
