# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# Whether the broker is there: the part of the client that calls gRPC's health service.

require "grpc"
require "grpc/health/v1/health_pb"

require "fila/errors"
require "fila/threads"

module Fila
  # Asking for the broker, and waiting for it.
  module Readiness
    HEALTH = "/grpc.health.v1.Health/Check"
    DEFAULT_READY_S = 30.0
    private_constant :HEALTH, :DEFAULT_READY_S

    # Asks the broker whether it serves, and returns how many seconds the answer took.
    # UnavailableError when it does not. Needs no permission.
    def ping(timeout: nil)
      @connection.check_open
      began = Clock.now
      # A request that names no service asks about all of them; it has no bytes.
      answer = @connection.call(HEALTH, "", Grpc::Health::V1::HealthCheckResponse,
                                @connection.seconds(timeout))
      return Clock.now - began if answer.status == :SERVING

      raise UnavailableError.new("the broker is not serving", code: "UNAVAILABLE")
    end

    # Pings until the broker serves, for up to `timeout` seconds; then DeadlineExceededError with
    # what the last ping failed with. For tests, and scripts that start beside their broker.
    def wait_ready(timeout: DEFAULT_READY_S)
      deadline = Clock.now + timeout
      attempts = 0
      begin
        ping(timeout: [@connection.timeout, deadline - Clock.now].min)
        nil
      rescue UnavailableError, DeadlineExceededError => e
        delay = @connection.backoff.delay(attempts, rand)
        raise not_ready(timeout, e) if Clock.now + delay >= deadline

        attempts += 1
        @connection.wait(delay)
        retry
      end
    end

    private

    def not_ready(timeout, error)
      DeadlineExceededError.new(
        format("the broker was not ready within %<seconds>g s: %<why>s",
               seconds: timeout, why: error.message),
        code: "DEADLINE_EXCEEDED", cause: error
      )
    end
  end
  private_constant :Readiness
end
