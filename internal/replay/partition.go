// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"regexp"
	"strconv"
	"time"
)

// partitions are the forms of time in names: the awss3 exporter's own, year=2026/month=01/…, and the
// same without words. What is behind the year may be missing from its end.
var partitions = [...]*regexp.Regexp{
	regexp.MustCompile(`/year=(\d{4})(?:/month=(\d{2})(?:/day=(\d{2})(?:/hour=(\d{2})(?:/minute=(\d{2}))?)?)?)?/`),
	regexp.MustCompile(`/((?:19|20)\d{2})/(\d{2})(?:/(\d{2})(?:/(\d{2})(?:/(\d{2}))?)?)?/`),
}

// partition returns the stretch of time that an object's name says it was written in; false if it
// says none. The exporter writes the time of its own zone.
func partition(name string, zone *time.Location) (from, to time.Time, ok bool) {
	for _, form := range partitions {
		match := form.FindStringSubmatch(name)
		if match == nil {
			continue
		}
		parts := [5]int{1, 1, 1, 0, 0} // year, month, day, hour, minute
		n := 0
		for n < 5 && match[n+1] != "" {
			parts[n], _ = strconv.Atoi(match[n+1]) // digits only, by the pattern
			n++
		}
		from = time.Date(parts[0], time.Month(parts[1]), parts[2], parts[3], parts[4], 0, 0, zone)
		if from.Month() != time.Month(parts[1]) || from.Day() != parts[2] || parts[3] > 23 || parts[4] > 59 {
			continue // there is no such day
		}
		switch n {
		case 1:
			to = from.AddDate(1, 0, 0)
		case 2:
			to = from.AddDate(0, 1, 0)
		case 3:
			to = from.AddDate(0, 0, 1)
		case 4:
			to = from.Add(time.Hour)
		default:
			to = from.Add(time.Minute)
		}
		return from, to, true
	}
	return from, to, false
}
