# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# Checks what a caller passes in, before it is encoded.
#
# Protobuf's own texts do not always name the field, and it sends broken UTF-8 that no broker can
# read. Values stay out of the texts: headers and payloads may be private.
module Fila
  # Each method returns the value as protobuf wants it, or raises TypeError or ArgumentError.
  module Arguments
    UINT32_MAX = (1 << 32) - 1
    UINT64_MAX = (1 << 64) - 1

    module_function

    # Text, in UTF-8. nil means that there is none.
    def text(name, value)
      return "" if value.nil?

      value = value.name if value.is_a?(Symbol)
      raise TypeError, "#{name} must be a String, not #{value.class}" unless value.is_a?(String)

      value = value.encode(Encoding::UTF_8) unless value.encoding == Encoding::UTF_8
      raise ArgumentError, "#{name} is not valid UTF-8" unless value.valid_encoding?

      value
    rescue EncodingError
      raise ArgumentError, "#{name} cannot be converted to UTF-8", cause: nil
    end

    # Text that cannot be left out.
    def required_text(name, value)
      raise TypeError, "#{name} must be a String, not nil" if value.nil?

      text(name, value)
    end

    # A whole number of at most 64 bits. nil means that there is none.
    def whole(name, value, maximum = UINT64_MAX)
      return 0 if value.nil?
      raise TypeError, "#{name} must be an Integer, not #{value.class}" unless value.is_a?(Integer)
      raise ArgumentError, "#{name} must not be negative, got #{value}" if value.negative?
      raise ArgumentError, "#{name} must be at most #{maximum}, got #{value}" if value > maximum

      value
    end

    # A whole number of at most 32 bits.
    def small(name, value)
      whole(name, value, UINT32_MAX)
    end

    # A whole number of at least one.
    def positive(name, value)
      raise ArgumentError, "#{name} must be positive, got 0" if small(name, value).zero?

      value
    end

    # A time in seconds, a whole number or not.
    def seconds(name, value)
      raise TypeError, "#{name} must be a Numeric, not #{value.class}" unless value.is_a?(Numeric)
      raise ArgumentError, "#{name} must not be negative, got #{value}" if value.negative?

      value
    end

    # Bytes: a String of any encoding, as it lies in memory.
    def bytes(name, value)
      raise TypeError, "#{name} must be a String, not #{value.class}" unless value.is_a?(String)

      value.encoding == Encoding::BINARY ? value : value.b
    end

    # A Timestamp. nil means that there is none.
    def timestamp(name, value)
      return nil if value.nil?
      raise TypeError, "#{name} must be a Time, not #{value.class}" unless value.is_a?(Time)

      Google::Protobuf::Timestamp.new(seconds: value.to_i, nanos: value.nsec)
    end

    # Milliseconds since 1970. nil is 0, which is "never" on the wire.
    def milliseconds(name, value)
      return 0 if value.nil?
      raise TypeError, "#{name} must be a Time, not #{value.class}" unless value.is_a?(Time)

      found = (value.to_r * 1000).floor
      raise ArgumentError, "#{name} must be after 1970; leave it out for never" if found <= 0

      found
    end

    # A list of texts.
    def texts(name, values)
      unless values.respond_to?(:map) && !values.is_a?(Hash)
        raise TypeError, "#{name} must be an Array of String, not #{values.class}"
      end

      values.map { |value| required_text(name, value) }
    end

    # A Hash of texts.
    def headers(values)
      raise TypeError, "headers must be a Hash, not #{values.class}" unless values.is_a?(Hash)

      values.to_h do |key, value|
        [header_part("key", key, key), header_part("value", key, value)]
      end
    end

    # Its name costs more than the check, so only what is no plain text gets one.
    def header_part(part, key, value)
      is_plain = value.is_a?(String) && value.encoding == Encoding::UTF_8 && value.valid_encoding?
      is_plain ? value : required_text("the #{part} of header #{key.inspect}", value)
    end
  end
  private_constant :Arguments
end
