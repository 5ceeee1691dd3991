# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

require_relative "lib/fila/version"

Gem::Specification.new do |spec|
  spec.name = "fila-client"
  spec.version = Fila::VERSION
  spec.summary = "Client for Fila, the message broker with fair scheduling and per-key throttling"
  spec.description = "Produce, consume and operate Fila from Ruby: coalesced enqueues and acks, " \
                     "consumers that outlive their connection, typed errors, TLS and API keys."
  spec.authors = ["The Fila authors"]
  spec.license = "AGPL-3.0-only"
  spec.homepage = "https://github.com/faiscadev/fila"
  spec.metadata = {
    "source_code_uri" => "#{spec.homepage}/tree/main/sdks/ruby",
    "documentation_uri" => "#{spec.homepage}/tree/main/docs",
    "changelog_uri" => "#{spec.homepage}/blob/main/CHANGELOG.md",
    "bug_tracker_uri" => "#{spec.homepage}/issues",
    "rubygems_mfa_required" => "true"
  }
  spec.required_ruby_version = ">= 3.1"
  spec.files = Dir.chdir(__dir__) do
    Dir["lib/**/*.rb", "sig/**/*.rbs", "examples/*.rb", "README.md", "LICENSE"]
  end

  spec.add_dependency "google-protobuf", ">= 3.21", "< 5"
  spec.add_dependency "grpc", ">= 1.51", "< 2"
  spec.add_dependency "logger", "~> 1.4"
end
