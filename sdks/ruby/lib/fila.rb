# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# Ruby client for Fila: `require "fila"`, then `Fila::Client`.
#
# The public API is what the README names and sig/ describes: Client, Consumer, Worker, what its
# handlers raise, the events, the messages and results that they hand out, TlsOptions, Backoff, the
# errors and `Fila.logger`. Everything else may change. `fila/testing` and `fila/active_job` are
# loaded by who wants them.

require "logger"

require "fila/version"
require "fila/errors"
require "fila/options"
require "fila/message"
require "fila/client"

# The client library of the Fila message broker.
module Fila
  @logger = Logger.new($stderr, level: Logger::WARN, progname: "fila")

  class << self
    # Where lost streams are reported. Never holds a payload, a header or an API key.
    attr_accessor :logger
  end
end
