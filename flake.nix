# The program for Nix: `nix run .`, `nix profile install .`. `make dist` evaluates this file without nixpkgs, and builds
# nothing with it.
{
  description = "A command per key: deduplicated, one at a time, retried";

  # Its Rust must be at least `rust-version` of Cargo.toml.
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      inherit (nixpkgs) lib;
      systems = [
        "x86_64-linux"
        "aarch64-linux"
        "x86_64-darwin"
        "aarch64-darwin"
      ];
      manifest = builtins.fromTOML (builtins.readFile ./Cargo.toml);
      requeue =
        pkgs:
        pkgs.rustPlatform.buildRustPackage {
          pname = "requeue";
          inherit (manifest.workspace.package) version;
          src = self;
          cargoLock.lockFile = ./Cargo.lock;
          cargoBuildFlags = [ "--package=requeue-cli" ];
          # `make test` runs the tests, which need servers.
          doCheck = false;
          nativeBuildInputs = [ pkgs.installShellFiles ];
          postInstall = ''
            mkdir man
            $out/bin/requeue man man
            installManPage man/*
            installShellCompletion --cmd requeue \
              --bash <($out/bin/requeue completions bash) \
              --fish <($out/bin/requeue completions fish) \
              --zsh <($out/bin/requeue completions zsh)
          '';
          meta = {
            description = "A command per key: deduplicated, one at a time, retried";
            license = [
              lib.licenses.mit
              lib.licenses.asl20
            ];
            mainProgram = "requeue";
            platforms = systems;
          };
        };
    in
    {
      packages = lib.genAttrs systems (system: {
        default = requeue nixpkgs.legacyPackages.${system};
      });
    };
}
