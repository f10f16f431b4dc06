/* SPDX-License-Identifier: Apache-2.0 */
/* pause.h - forced into region_ops.c for region_test: see VGPU_PAUSE there. */
void test_pause(int step);
