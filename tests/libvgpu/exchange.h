/* SPDX-License-Identifier: Apache-2.0 */
/* exchange.h - forced into base/table.c for table_test: a call of the test before each exchange. */
void test_exchange(void);
#define __atomic_compare_exchange_n(...) (test_exchange(), __atomic_compare_exchange_n(__VA_ARGS__))
