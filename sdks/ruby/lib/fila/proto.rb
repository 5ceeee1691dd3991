# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# Loads the generated code of the contract, `Fila::V1`.
#
# Generated files require each other by their path below `proto/` ("fila/v1/messages_pb"), so that
# folder has to be on the load path, whether the gem is installed or run from a checkout.
proto = File.join(__dir__, "proto")
$LOAD_PATH.push(proto) unless $LOAD_PATH.include?(proto)

require "fila/v1/messages_pb"
require "fila/v1/service_pb"
require "fila/v1/admin_pb"
