# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# The API key that calls carry: always the same, or asked for each time. Keeps it out of texts.

require "fila/errors"

module Fila
  # Where the API key comes from. There may be none.
  class Credentials
    REDACTED = "[redacted]"
    FORM = /\A[!-~]+\z/
    private_constant :REDACTED, :FORM

    # A String, nil, or what answers to `call` with one of those.
    def initialize(api_key)
      @source = api_key.respond_to?(:call) ? api_key : nil
      @api_key = checked(api_key) unless @source
    end

    # The key for one call. Whatever its source raises fails that call: an Error as it is, for whose
    # class decides about trying again, anything else as an UnauthenticatedError. A library that
    # cannot be loaded is a ScriptError, and would end the thread that asks, which serves others.
    def key
      return @api_key unless @source

      checked(@source.call)
    rescue Error
      raise
    rescue StandardError, ScriptError => e
      raise UnauthenticatedError.new("no API key, its source failed: #{e.class}: #{e.message}",
                                     cause: e)
    end

    # The text without the key.
    def self.hidden(text, key)
      key ? text.gsub(key, REDACTED) : text
    end

    # Not the key.
    def inspect
      "#<#{self.class}>"
    end

    private

    # gRPC refuses other characters too, but with a text that repeats the key.
    def checked(api_key)
      return api_key if api_key.nil? || (api_key.is_a?(String) && api_key.match?(FORM))

      raise ArgumentError, "api_key must be printable ASCII without spaces, and not empty"
    end
  end
  private_constant :Credentials
end
