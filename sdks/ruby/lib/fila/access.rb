# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# Who may do what: the part of the client that calls FilaAdmin for API keys and their permissions.

require "fila/admin"
require "fila/arguments"
require "fila/values"

module Fila
  # The calls of FilaAdmin that are about API keys.
  module Access
    # Creates an API key and returns it with its secret, this once, as a NewApiKey. `acl` is a list
    # of AclEntry, `expires_at` a Time.
    def create_api_key(name, acl: [], expires_at: nil, superadmin: false, timeout: nil)
      request = V1::CreateApiKeyRequest.new(
        name: Arguments.required_text("name", name),
        expires_at_ms: Arguments.milliseconds("expires_at", expires_at),
        superadmin: superadmin ? true : false,
        acl: acl_entries(acl)
      )
      Values.plain(NewApiKey, admin("CreateApiKey", request, timeout))
    end

    # Makes an API key useless at once.
    def revoke_api_key(key_id, timeout: nil)
      request = V1::RevokeApiKeyRequest.new(key_id: Arguments.required_text("key_id", key_id))
      admin("RevokeApiKey", request, timeout)
      nil
    end

    # All API keys, without secrets, as ApiKeyInfo.
    def list_api_keys(timeout: nil)
      answer = admin("ListApiKeys", V1::ListApiKeysRequest.new, timeout, is_repeatable: true)
      answer["keys"].map { |row| Values.api_key(row) }
    end

    # Replaces what an API key may do.
    def set_acl(key_id, acl, timeout: nil)
      key_id = Arguments.required_text("key_id", key_id)
      admin("SetAcl", V1::SetAclRequest.new(key_id:, acl: acl_entries(acl)), timeout)
      nil
    end

    # Reads what an API key may do, as an Acl.
    def get_acl(key_id, timeout: nil)
      request = V1::GetAclRequest.new(key_id: Arguments.required_text("key_id", key_id))
      answer = admin("GetAcl", request, timeout, is_repeatable: true)
      Values.plain(Acl, answer, entries: Values.acl(answer.acl))
    end

    PERMISSIONS = %i[produce consume admin].freeze
    private_constant :PERMISSIONS

    private

    def acl_entries(acl)
      acl.map do |entry|
        V1::AclPermission.new(
          kind: permission(entry.permission),
          pattern: Arguments.required_text("pattern", entry.pattern)
        )
      end
    end

    def permission(value)
      return value.to_s if PERMISSIONS.include?(value.to_s.to_sym)

      raise ArgumentError,
            "permission must be one of #{PERMISSIONS.join(", ")}, not #{value.inspect}"
    end
  end
  private_constant :Access
end
