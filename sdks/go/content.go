// SPDX-License-Identifier: AGPL-3.0-only

// Payloads that are text or JSON. What was put in is what comes out: nothing marks a message.

package fila

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
)

// EnqueueText is Enqueue of a text. Fails with ErrInvalidArgument when it is not valid UTF-8.
func (c *Client) EnqueueText(
	ctx context.Context, queue string, headers map[string]string, text string,
	options ...EnqueueOption,
) (string, error) {
	if !utf8.ValidString(text) {
		return "", invalid("text is not valid UTF-8", subject{queue: queue})
	}
	return c.Enqueue(ctx, queue, headers, []byte(text), options...)
}

// EnqueueJSON is Enqueue of a value as encoding/json writes it. Fails with ErrInvalidArgument, and
// with the error of that package in its chain, when it cannot.
func (c *Client) EnqueueJSON(
	ctx context.Context, queue string, headers map[string]string, value any,
	options ...EnqueueOption,
) (string, error) {
	payload, err := json.Marshal(value)
	if err != nil {
		text := "value cannot be written as JSON: " + err.Error()
		about := subject{queue: queue}
		return "", newError(ErrInvalidArgument, codes.InvalidArgument, text, about, err)
	}
	return c.Enqueue(ctx, queue, headers, payload, options...)
}

var errNotUTF8 = errors.New("payload is not valid UTF-8")

// Text returns the payload as text. Fails, naming the message, when it is not valid UTF-8.
func (m Message) Text() (string, error) {
	if !utf8.Valid(m.Payload) {
		return "", fmt.Errorf("message %q: %w", m.ID, errNotUTF8)
	}
	return string(m.Payload), nil
}

// JSON reads the payload into what target points to, as encoding/json does. Fails, naming the
// message, when it is not JSON or does not fit.
func (m Message) JSON(target any) error {
	if !utf8.Valid(m.Payload) { // Which encoding/json would quietly repair.
		return fmt.Errorf("message %q: %w", m.ID, errNotUTF8)
	}
	if err := json.Unmarshal(m.Payload, target); err != nil {
		return fmt.Errorf("message %q: %w", m.ID, err)
	}
	return nil
}
