// SPDX-License-Identifier: AGPL-3.0-only

package fila

import (
	"testing"
	"time"
)

func TestBackoffDoublesUpToItsMaximumAndIsARandomPart(t *testing.T) {
	backoff := Backoff{Initial: 100 * time.Millisecond, Maximum: 5 * time.Second}
	for attempt, want := range map[int]time.Duration{
		0: 100 * time.Millisecond, 1: 200 * time.Millisecond, 5: 3200 * time.Millisecond,
		6: 5 * time.Second, 1_000_000: 5 * time.Second,
	} {
		if got := backoff.delay(attempt, 1); got != want {
			t.Errorf("attempt %d: got %v, want %v", attempt, got, want)
		}
		if got := backoff.delay(attempt, 0.5); got != want/2 {
			t.Errorf("half of attempt %d: got %v, want %v", attempt, got, want/2)
		}
	}
}
