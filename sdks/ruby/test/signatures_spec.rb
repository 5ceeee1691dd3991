# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

require "rbs"
require "rbs/cli"

require "fila/active_job"
require "fila/testing"

# The signatures in sig/ are valid, whole, and true.
RSpec.describe "Signatures" do
  sig = File.join(__dir__, "../sig")
  # `@api private` in a comment is a promise to nobody.
  private_mark = "@api private"

  let(:builder) do
    loader = RBS::EnvironmentLoader.new
    loader.add(path: Pathname(sig))
    RBS::DefinitionBuilder.new(env: RBS::Environment.from_loader(loader).resolve_type_names)
  end

  def public_modules(namespace = Fila)
    namespace.constants.flat_map do |name|
      found = namespace.const_get(name)
      next [] unless found.is_a?(Module) && found.name.start_with?("Fila") && found != Fila::V1

      [found, *public_modules(found)]
    end
  end

  def type_name(kind)
    *path, name = kind.name.split("::").map(&:to_sym)
    RBS::TypeName.new(name:, namespace: RBS::Namespace.new(path:, absolute: true))
  end

  define_method(:described?) do |method|
    file, line = method.source_location
    next true if file.nil?

    comment = File.readlines(file)[0...(line - 1)].reverse.take_while { |each| each =~ /\A\s*#/ }
    comment.none? { |each| each.include?(private_mark) }
  end

  def methods_of(kind)
    own = kind.public_instance_methods(false).map { |name| kind.instance_method(name) }
    names = own.select { |method| described?(method) }.map(&:name)
    kind < Struct ? names.grep_v(/=\z/) | kind.members : names
  end

  def signed(kind)
    builder.build_instance(type_name(kind)).methods.select do |_, method|
      method.public? && method.defined_in == type_name(kind)
    end.keys - [:initialize]
  end

  it "are valid" do
    errors = StringIO.new
    cli = RBS::CLI.new(stdout: StringIO.new, stderr: errors)
    expect { cli.run(["-I", sig, "validate", "--silent"]) }.not_to raise_error
    expect(errors.string).to eq ""
  end

  it "are there for every public method, and for nothing else" do
    kinds = public_modules
    expect(kinds).to include(Fila::Client, Fila::Worker, Fila::Error, Fila::Testing::Broker)
    kinds.each do |kind|
      unsigned = methods_of(kind) - builder.build_instance(type_name(kind)).methods.keys
      expect([kind, unsigned]).to eq [kind, []]
      absent = signed(kind) - kind.instance_methods - kind.private_instance_methods
      expect([kind, absent]).to eq [kind, []]
    end
  end

  it "name the arguments that there are" do
    public_modules.each do |kind|
      signed(kind).each do |name|
        method = kind.instance_method(name)
        next if method.source_location.nil? || method.parameters.include?(%i[rest *])

        keywords = method.parameters.filter_map { |how, word| word if %i[key keyreq].include?(how) }
        overloads = builder.build_instance(type_name(kind)).methods[name].method_types
        given = overloads.flat_map do |overload|
          [*overload.type.optional_keywords.keys, *overload.type.required_keywords.keys]
        end
        next expect([kind, name, keywords - given]).to eq [kind, name, []] if
          method.parameters.any? { |how,| how == :keyrest }

        expect([kind, name, given.uniq.sort]).to eq [kind, name, keywords.sort]
      end
    end
  end

  it "are true of what a real broker is asked and answers" do
    environment = { "RBS_TEST_TARGET" => "Fila::*", "RBS_TEST_OPT" => "-I #{sig}",
                    "RBS_TEST_LOGLEVEL" => "error", "RBS_TEST_RAISE" => "true" }
    tour = File.join(__dir__, "support/tour.rb")
    command = [RbConfig.ruby, "-r", "rbs/test/setup", "-I", File.join(__dir__, "../lib"), tour]
    said = IO.popen([environment, *command, { err: %i[child out] }], &:read)
    expect(said).to eq "done\n"
  end
end
