//! The median and quartiles of figures.

/// Median and quartiles.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    /// The first quartile.
    pub q1: f64,
    /// The median.
    pub median: f64,
    /// The third quartile.
    pub q3: f64,
}

impl Spread {
    /// Returns `None` for an empty list.
    #[must_use]
    pub fn of(mut figures: Vec<f64>) -> Option<Self> {
        figures.retain(|figure| figure.is_finite());
        figures.sort_by(f64::total_cmp);
        let last = figures.len().checked_sub(1)? as f64;
        let at = |part: f64| {
            let place = last * part;
            let (low, high) = (figures[place.floor() as usize], figures[place.ceil() as usize]);
            (high - low).mul_add(place.fract(), low)
        };
        Some(Self { q1: at(0.25), median: at(0.5), q3: at(0.75) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_lie_between_figures_where_there_is_none_at_the_place() {
        let spread = Spread::of(vec![4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!(spread, Spread { q1: 1.75, median: 2.5, q3: 3.25 });
        assert_eq!(Spread::of(vec![7.0]).unwrap(), Spread { q1: 7.0, median: 7.0, q3: 7.0 });
    }

    #[test]
    fn of_nothing_there_is_no_spread() {
        assert_eq!(Spread::of(Vec::new()), None);
        assert_eq!(Spread::of(vec![f64::NAN, f64::INFINITY]), None);
    }
}
