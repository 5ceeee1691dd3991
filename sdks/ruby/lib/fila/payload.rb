# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# Text and JSON as payloads. What was put in is what comes out: no header says which it was.

require "json"

require "fila/arguments"

module Fila
  # How text and JSON become bytes, and come back.
  module Payload
    module_function

    # The bytes of the one that is given; none are the bytes of an empty message.
    def bytes(payload, text, json)
      given = { payload:, text:, json: }.compact
      if given.length > 1
        raise ArgumentError, "a message has one of payload, text and json, not #{given.length}: " \
                             "#{given.keys.join(", ")}"
      end
      return Arguments.bytes("payload", payload || "") unless text || !json.nil?

      (json.nil? ? Arguments.text("text", text) : generated(json)).b
    end

    # How much a message will hold, as far as that is known before it is encoded.
    def size(payload, text)
      [payload, text].sum { |given| given.is_a?(String) ? given.bytesize : 0 }
    end

    # Raises EncodingError for what is not UTF-8.
    def text(payload, message_id)
      text = payload.dup.force_encoding(Encoding::UTF_8)
      return text if text.valid_encoding?

      raise EncodingError, "the payload of message #{message_id.inspect} is not UTF-8"
    end

    # Raises JSON::ParserError for what is no JSON. Its own text would show the payload.
    def json(payload, message_id)
      JSON.parse(text(payload, message_id))
    rescue JSON::ParserError
      what = "the payload of message #{message_id.inspect}"
      raise JSON::ParserError, "#{what} is not JSON", cause: nil
    end

    def generated(value)
      JSON.generate(value)
    rescue JSON::GeneratorError
      raise ArgumentError, "json is nothing that JSON can say", cause: nil
    end
  end
  private_constant :Payload
end
