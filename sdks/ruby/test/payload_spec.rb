# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# Text and JSON in place of bytes, both ways.
RSpec.describe Fila::Message do
  def stored
    broker.calls("EnqueueBatch").flat_map { |call| call.request.messages.map(&:payload) }
  end

  def message(payload)
    described_class.new(raw_message("m-1", payload:))
  end

  it "is enqueued from text, in UTF-8" do
    client.enqueue("orders", text: "Grüße")
    client.enqueue("orders", text: "Gr\xFC\xDFe".dup.force_encoding(Encoding::ISO_8859_1))
    client.enqueue_many([Fila::EnqueueMessage.new(queue: "orders", text: "Grüße")])
    expect(stored).to eq ["Grüße".b] * 3
    expect(broker.seen.flat_map { |call| call.request.messages.map { |m| m.headers.to_h } })
      .to eq [{}] * 3
  end

  it "is enqueued from JSON" do
    client.enqueue("orders", json: { "a" => [1, nil, "é"] })
    client.enqueue("orders", json: false)
    client.enqueue_many([Fila::EnqueueMessage.new(queue: "orders", json: [])])
    expect(stored).to eq ['{"a":[1,null,"é"]}'.b, "false", "[]"]
  end

  it "has one of the three" do
    { { payload: "a", text: "b" } => "payload, text", { text: "b", json: 1 } => "text, json",
      { payload: "", text: "b", json: 1 } => "payload, text, json" }.each do |given, names|
      expect { client.enqueue("orders", **given) }
        .to raise_error(ArgumentError, /one of payload, text and json, not \d: #{names}\z/)
    end
    expect(broker.seen).to eq []
  end

  it "names what is neither" do
    expect { client.enqueue("orders", text: "\xFF") }
      .to raise_error(ArgumentError, "text is not valid UTF-8")
    expect { client.enqueue("orders", text: 5) }
      .to raise_error(TypeError, "text must be a String, not Integer")
    expect { client.enqueue("orders", json: Float::NAN) }
      .to raise_error(ArgumentError, "json is nothing that JSON can say")
  end

  it "is read as text and as JSON" do
    expect(message("Grüße".b).text).to eq "Grüße"
    expect(message('{"a":[1,null]}').json).to eq("a" => [1, nil])
    expect(message("null").json).to be_nil
    expect(message("").text).to eq ""
  end

  it "says which message is not what was asked for, without showing it" do
    expect { message("\xFF".b).text }
      .to raise_error(EncodingError, 'the payload of message "m-1" is not UTF-8')
    expect { message("\xFF".b).json }.to raise_error(EncodingError)
    expect { message("secret").json }
      .to raise_error(JSON::ParserError, 'the payload of message "m-1" is not JSON') { |error|
            expect(error.full_message).not_to include "secret"
          }
  end
end
