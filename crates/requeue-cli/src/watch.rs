//! What the program heeds while it runs.

use std::sync::Arc;

use crate::run::Runner;
use crate::signals::{self, Level, Signals};

impl Runner {
    /// Acts on signals and on the end of standard output, as long as the program runs.
    pub(crate) async fn watch(self: Arc<Self>, mut signals: Signals) {
        let mut level = Level::Running;
        let mut is_open = true;
        loop {
            tokio::select! {
                signal = signals.next() => {
                    self.signal.get_or_init(|| signal);
                    level = level.next();
                    self.stop(level);
                    let running = self.queue.processing();
                    if level == Level::Stopping && running > 0 {
                        let name = signals::name(signal);
                        self.output.hint(&format!(
                            "{name}: nothing more is started; once more ends what runs ({running})"
                        ));
                    }
                }
                () = self.output.closed(), if is_open => {
                    is_open = false;
                    self.stop(Level::Stopping);
                }
            }
            self.drop_the_rest();
        }
    }
}
