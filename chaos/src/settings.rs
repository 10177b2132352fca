//! Changes the settings of the queue and of its groups during a run.

use requeue_store::UpdateError;

use crate::driver::{Run, settled};
use crate::event::now;
use crate::groups::{
    Change, GROUP_RATES, GROUPS, LIMITED, PAUSED, QUEUE_RATES, RATED, RERATED, Rate, Setting,
    WEIGHTS, group_name,
};
use crate::report::Fault;
use crate::worker::Failed;

impl Run<'_> {
    /// Gives groups their first limits and rates. The queue was created with `rate`.
    pub(crate) async fn choose_settings(&mut self, rate: Option<Rate>) -> Result<(), Failed> {
        if rate.is_some() {
            let (begun, setting) = (0, Setting::Rate(rate));
            self.losses.settings.0.push(Change { group: None, begun, at: now(), setting });
        }
        for group in LIMITED {
            self.set(Some(group), Setting::Limit(Some(1 + group % 3))).await?;
        }
        for (group, rate) in RATED.zip(GROUP_RATES) {
            self.set(Some(group), Setting::Rate(Some(rate))).await?;
        }
        Ok(())
    }

    /// Changes one setting. Successive calls change the kinds of settings in turn.
    pub(crate) async fn change_settings(&mut self) -> Result<(), Failed> {
        self.settings_changed += 1;
        let rng = &mut self.rng;
        let limit = Some(rng.u32(0..4)).filter(|&limit| limit > 0);
        let (group, setting, fault) = match self.settings_changed % 6 {
            0 => {
                let group = rng.u32(PAUSED);
                let is_paused = self.losses.settings.is_paused(group);
                (Some(group), Setting::Paused(!is_paused), Fault::GroupPaused)
            }
            1 => (Some(rng.u32(LIMITED)), Setting::Limit(limit), Fault::GroupLimited),
            2 => {
                let weight = Setting::Weight(rng.u32(1..=WEIGHTS));
                (Some(rng.u32(..GROUPS)), weight, Fault::GroupWeighed)
            }
            3 => {
                let rate = Setting::Rate(GROUP_RATES.get(rng.usize(..=GROUP_RATES.len())).copied());
                (Some(rng.u32(RERATED)), rate, Fault::GroupRated)
            }
            // In most periods, the queue has no limit and no rate, so that groups wait only for their turns.
            4 => (None, Setting::Limit(limit.filter(|_| rng.bool())), Fault::QueueLimited),
            _ if self.plan.subject.may_have_rate(self.plan.seed) => {
                let rate = QUEUE_RATES.get(rng.usize(..2 * QUEUE_RATES.len())).copied();
                (None, Setting::Rate(rate), Fault::QueueRated)
            }
            _ => return Ok(()),
        };
        self.set(group, setting).await?;
        self.count(fault);
        Ok(())
    }

    /// Ends all pauses and rates, so that the remaining keys can be delivered.
    pub(crate) async fn free_groups(&mut self) -> Result<(), Failed> {
        if self.plan.subject.may_have_rate(self.plan.seed) {
            self.set(None, Setting::Rate(None)).await?;
        }
        for group in RATED {
            self.set(Some(group), Setting::Rate(None)).await?;
        }
        for group in PAUSED {
            self.set(Some(group), Setting::Paused(false)).await?;
        }
        Ok(())
    }

    /// Repeats the changes that a server may have lost.
    pub(crate) async fn restore_settings(&mut self) -> Result<(), Failed> {
        let losses = &self.losses;
        let mut lost = losses.settings.last();
        lost.retain(|change| losses.evicts || losses.has_change(change));
        for Change { group, setting, .. } in lost {
            self.set(group, setting).await?;
        }
        Ok(())
    }

    async fn set(&mut self, group: Option<u32>, setting: Setting) -> Result<(), Failed> {
        let begun = now();
        settled(|| self.request(group, setting)).await?;
        self.losses.settings.0.push(Change { group, begun, at: now(), setting });
        Ok(())
    }

    async fn request(&self, group: Option<u32>, setting: Setting) -> Result<(), UpdateError> {
        let Some(group) = group else {
            return match setting {
                Setting::Limit(limit) => self.queue.set_group_limit(limit).await,
                Setting::Rate(rate) => self.queue.set_rate(rate.map(Rate::into)).await,
                Setting::Paused(_) | Setting::Weight(_) => Ok(()),
            };
        };
        let handle = self.queue.group(group_name(group));
        match setting {
            Setting::Limit(limit) => handle.set_limit(limit).await,
            Setting::Paused(true) => handle.pause().await,
            Setting::Paused(false) => handle.resume().await,
            Setting::Weight(weight) => handle.set_weight(weight).await,
            Setting::Rate(rate) => handle.set_rate(rate.map(Rate::into)).await,
        }
    }
}
