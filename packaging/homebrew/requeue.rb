# The formula. `scripts/publish.sh formula` fills it in from the files of a release.
class Requeue < Formula
  desc "Run a command per key: deduplicated, one at a time, retried"
  homepage "@REPOSITORY@"
  version "@VERSION@"
  license any_of: ["MIT", "Apache-2.0"]

  on_macos do
    on_arm do
      url "@RELEASE@/requeue-@VERSION@-aarch64-apple-darwin.tar.gz"
      sha256 "@SHA256@"
    end
    on_intel do
      url "@RELEASE@/requeue-@VERSION@-x86_64-apple-darwin.tar.gz"
      sha256 "@SHA256@"
    end
  end

  on_linux do
    on_arm do
      url "@RELEASE@/requeue-@VERSION@-aarch64-unknown-linux-musl.tar.gz"
      sha256 "@SHA256@"
    end
    on_intel do
      url "@RELEASE@/requeue-@VERSION@-x86_64-unknown-linux-musl.tar.gz"
      sha256 "@SHA256@"
    end
  end

  def install
    bin.install "requeue"
    man1.install Dir["man/*"]
    bash_completion.install "completions/requeue"
    zsh_completion.install "completions/_requeue"
    fish_completion.install "completions/requeue.fish"
  end

  test do
    assert_equal "a\n", pipe_output("#{bin}/requeue run -j1 echo", "a\n", 0)
  end
end
