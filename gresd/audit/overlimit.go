// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"fmt"
	"time"
)

const (
	// A job's mean use of ten seconds must be above its hard limit for overlimitGrace. By then,
	// launches of unknown cost are over. Long kernels, which the job pays after their end, are over,
	// too.
	overlimitGrace = 10 * time.Second
	// overlimitSlack is the difference that is allowed, in hundredths of the card.
	overlimitSlack = 5
)

// overlimit are the jobs that had more of a card than their hard limit.
func overlimit(c Card, jobs []Job) []Finding {
	var found []Finding
	for _, job := range jobs {
		had, known := c.Least[job.ID]
		share := job.holds(c.UUID)
		if !known || share == nil || had <= float64(share.Cores)+overlimitSlack {
			continue
		}
		found = append(found, Finding{
			Kind: Overlimit, Job: job.ID, UUID: c.UUID, owner: job.UID,
			Text: fmt.Sprintf("job %d of user %d had at least %.0f %% of the time of card %s in the last 10 s, by the card's own account: "+
				"its hard limit is %d %%; it works by calls that libvgpu does not know or does not see, and only slices hold it beside others",
				job.ID, job.UID, had, c.Name, share.Cores),
		})
	}
	return found
}
