// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.time.Instant;

/**
 * One reason to wait.
 *
 * @param kind what kind of waiting it is; null for a kind newer than this client
 * @param detail one clause for people
 * @param throttleKey the throttle key at fault; empty where there is none
 * @param until when this reason ends; null when that cannot be known
 * @param count deliveries ahead, or messages leased, by kind
 * @param limit the limit that is reached, by kind
 */
public record WaitReason(
    WaitKind kind, String detail, String throttleKey, Instant until, long count, long limit) {}
