/** The sample room and the sample task in Chinese. The demo provider has the answers, which depend on the names here. */
import type { Schema } from '@/api/types'

const PLAN = '你和其他人一起策划天文台开放日。'

export function sampleRoom(provider: string): Schema<'RoomDocument'> {
  return {
    version: 1,
    title: '开放日（示例）',
    task: '为一座小型天文台策划开放日：120 位访客，一个晚上，600 欧元。请商定一份一页纸的日程。由编辑写下来，并以“一致通过”结束。',
    max_rounds: 2,
    policy: 'parallel',
    stop: { any: [{ rounds: 2 }, { phrase: '一致通过', seat: '编辑' }] },
    agents: [
      {
        name: '策划',
        role: '提出日程',
        provider,
        tools: [],
        system_prompt: `${PLAN}提出带时间的日程，最多五行。有人反对时就修改。`,
      },
      {
        name: '财务',
        role: '看管预算',
        provider,
        tools: ['process_data'],
        system_prompt: `${PLAN}检查日程的花费。用 process_data 求和，然后用两句话说明 600 欧元是否足够、应去掉什么。`,
      },
      {
        name: '访客',
        role: '代表访客',
        provider,
        tools: [],
        system_prompt: `${PLAN}用两句话说出访客（包括孩子）会缺少什么、看不懂什么。`,
      },
      {
        name: '编辑',
        role: '写下结果',
        provider,
        tools: [],
        system_prompt: `${PLAN}如果还有未决的问题，请指出。如果没有，就用最多六行写下日程，并以“一致通过”结束。`,
      },
    ],
  }
}

export function sampleTask(provider: string): Schema<'TaskDocument'> {
  return {
    version: 1,
    name: '阳台光伏（示例）',
    goal: '为一户有朝南阳台的家庭提供建议：800 瓦的小型光伏是否划算，包括发电量、费用、规定，以及应先买什么。',
    provider,
    max_concurrent_steps: 3,
    steps: [
      {
        id: 'yield',
        name: '估算发电量',
        goal: '800 瓦光伏在朝南阳台上每年发多少千瓦时，并写明假设。',
        required_tools: ['process_data'],
      },
      { id: 'cost', name: '汇总费用', goal: '组件、逆变器和安装一共多少钱，以欧元区间表示。', required_tools: [] },
      { id: 'rules', name: '列出规定', goal: '租户需要登记和征得同意的事项，列成清单。', required_tools: [] },
      {
        id: 'payback',
        name: '计算回本时间',
        goal: '按每千瓦时 0.32 欧元，多少年后回本。',
        depends_on: ['yield', 'cost'],
        required_tools: [],
      },
      {
        id: 'shopping',
        name: '写出采购清单',
        goal: '要买什么，按购买顺序排列，并给出各自的价格区间。',
        depends_on: ['payback', 'rules'],
        required_tools: [],
        require_approval: true,
      },
    ],
  }
}
